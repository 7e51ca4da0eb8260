// The worker's calls about contexts to the store: on a connection of their own, because they take
// long, and StoreLink's calls must not wait for them.
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "retroinfer/kvstore/v1/contexts.grpc.pb.h"

namespace retroinfer {

// Threads: any. Errors of the stub's calls: see kvstore/v1/contexts.proto; UNAVAILABLE without a
//          store.
class ContextClient {
 public:
  // `target`: gRPC target of the store. Does not connect yet.
  explicit ContextClient(const std::string& target);

  kvstore::v1::ContextStoreService::Stub& stub() { return *stub_; }

 private:
  const std::unique_ptr<kvstore::v1::ContextStoreService::Stub> stub_;
};

}  // namespace retroinfer
