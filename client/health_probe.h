// Asks the health service of a server.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/time/time.h"

namespace retroinfer::client {

// Keeps one connection. Plain text only.
//
// Threads: one at a time.
class HealthProbe {
 public:
  explicit HealthProbe(const std::string& address);

  // Returns whether the server at the address answers SERVING within `timeout`.
  bool IsServing(absl::Duration timeout);

 private:
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace retroinfer::client
