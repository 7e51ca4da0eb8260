// Calls with requests that are no messages.
#pragma once

#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/rpc/grpc_status.h"

namespace retroinfer::test_support {

// Sends `bytes` as the only request of a method, "/package.Service/Method". Returns how it ended.
inline absl::Status RawCall(const std::shared_ptr<grpc::Channel>& channel, const std::string& path,
                            const std::string& bytes) {
  const grpc::internal::RpcMethod method(path.c_str(), grpc::internal::RpcMethod::NORMAL_RPC);
  const grpc::Slice slice(bytes);
  const grpc::ByteBuffer request(&slice, 1);
  grpc::ByteBuffer response;
  grpc::ClientContext context;
  using Bytes = grpc::ByteBuffer;
  return common::FromGrpcStatus(grpc::internal::BlockingUnaryCall<Bytes, Bytes, Bytes, Bytes>(
      channel.get(), method, &context, request, &response));
}

}  // namespace retroinfer::test_support
