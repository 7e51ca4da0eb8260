// Asks the health service of a server.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace retroinfer::client {

// Connects anew for each question. A channel that is kept would not do: between two calls nobody
// attends to a connection that it has begun, which then fails by its own time limit.
//
// Threads: one at a time.
class HealthProbe {
 public:
  using OpenChannel =
      std::function<absl::StatusOr<std::shared_ptr<grpc::Channel>>(grpc::ChannelArguments)>;

  // In plain text.
  explicit HealthProbe(const std::string& address);
  explicit HealthProbe(OpenChannel open) : open_(std::move(open)) {}

  // Asks for `service` ("": the whole server).
  //
  // Returns: OK if it is serving; FAILED_PRECONDITION if it says that it is not; NOT_FOUND if the
  //          server knows no such service; UNAVAILABLE or DEADLINE_EXCEEDED if nobody answers
  //          within `timeout`; whatever opening a channel returns.
  absl::Status Check(const std::string& service, absl::Duration timeout);

  // Returns whether the whole server is serving. A connection that cannot be made is tried again
  // until `timeout`.
  bool IsServing(absl::Duration timeout);

 private:
  absl::Status Ask(const std::string& service, absl::Duration timeout, bool wait_for_ready);

  OpenChannel open_;
};

}  // namespace retroinfer::client
