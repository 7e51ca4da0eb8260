// Asks the health service of a server.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace retroinfer::client {

// Keeps one connection.
//
// Threads: one at a time.
class HealthProbe {
 public:
  // In plain text.
  explicit HealthProbe(const std::string& address);
  explicit HealthProbe(std::shared_ptr<grpc::Channel> channel) : channel_(std::move(channel)) {}

  // Arguments for a channel to a server that may be starting: it tries again soon.
  static grpc::ChannelArguments Arguments();

  // Asks for `service` ("": the whole server).
  //
  // Returns: OK if it is serving; FAILED_PRECONDITION if it says that it is not; NOT_FOUND if the
  //          server knows no such service; UNAVAILABLE or DEADLINE_EXCEEDED if nobody answers
  //          within `timeout`.
  absl::Status Check(const std::string& service, absl::Duration timeout);

  // Returns whether the whole server is serving. A connection that cannot be made is tried again
  // until `timeout`.
  bool IsServing(absl::Duration timeout);

 private:
  absl::Status Ask(const std::string& service, absl::Duration timeout, bool wait_for_ready);

  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace retroinfer::client
