// Registers the methods of a service so that their requests are looked at before they are parsed.
//
// gRPC's own handlers parse a message before any code of ours sees it, and two bytes of it can take
// a hundred in memory: 64 MiB took gigabytes.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/rpc_service_method.h>
#include <grpcpp/support/method_handler.h>

#include <list>
#include <string>
#include <utility>

#include "common/rpc/bounded_reader.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/message_codec.h"

namespace retroinfer::common {

// Stands before a generated service with handlers that block, `Handlers`, which is not registered
// itself. Requests are read by ParseRequest(), with its bounds and errors.
//
// Threads: handlers run on gRPC's threads.
template <typename Handlers>
class BoundedService final : public grpc::Service {
 public:
  // REQUIRES: `handlers` outlives this object.
  BoundedService(std::string full_name, Handlers* handlers)  // "package.Service"
      : full_name_(std::move(full_name)), handlers_(*handlers) {}

  // Adds methods of the service, by their names in the .proto and their handlers.
  //
  // REQUIRES: before this object is registered.
  template <typename Owner, typename Request, typename Response>
  void Add(const std::string& name,
           grpc::Status (Owner::*handler)(grpc::ServerContext*, const Request*, Response*)) {
    using Handler =
        grpc::internal::RpcMethodHandler<BoundedService, grpc::ByteBuffer, Response,
                                         grpc::ByteBuffer, google::protobuf::MessageLite>;
    AddMethod(name, grpc::internal::RpcMethod::NORMAL_RPC,
              new Handler(
                  [handler](BoundedService* self, grpc::ServerContext* context,
                            const grpc::ByteBuffer* bytes, Response* response) {
                    return self->template Handle<Request>(handler, context, bytes, response);
                  },
                  this));
  }
  template <typename Owner, typename Request, typename Response>
  void Add(const std::string& name,
           grpc::Status (Owner::*handler)(grpc::ServerContext*, const Request*,
                                          grpc::ServerWriter<Response>*)) {
    using Handler =
        grpc::internal::ServerStreamingHandler<BoundedService, grpc::ByteBuffer, Response>;
    AddMethod(name, grpc::internal::RpcMethod::SERVER_STREAMING,
              new Handler(
                  [handler](BoundedService* self, grpc::ServerContext* context,
                            const grpc::ByteBuffer* bytes, grpc::ServerWriter<Response>* writer) {
                    return self->template Handle<Request>(handler, context, bytes, writer);
                  },
                  this));
  }
  template <typename Owner, typename Request, typename Response>
  void Add(const std::string& name,
           grpc::Status (Owner::*handler)(grpc::ServerContext*, BoundedReader<Request>*,
                                          Response*)) {
    using Handler =
        grpc::internal::ClientStreamingHandler<BoundedService, grpc::ByteBuffer, Response>;
    AddMethod(name, grpc::internal::RpcMethod::CLIENT_STREAMING,
              new Handler(
                  [handler](BoundedService* self, grpc::ServerContext* context,
                            grpc::ServerReader<grpc::ByteBuffer>* reader, Response* response) {
                    BoundedReader<Request> bounded(reader);
                    return (self->handlers_.*handler)(context, &bounded, response);
                  },
                  this));
  }

 private:
  void AddMethod(const std::string& name, grpc::internal::RpcMethod::RpcType type,
                 grpc::internal::MethodHandler* handler) {
    // The names outlive the methods, which keep pointers to them.
    names_.push_back("/" + full_name_ + "/" + name);
    grpc::Service::AddMethod(
        new grpc::internal::RpcServiceMethod(names_.back().c_str(), type, handler));
  }

  template <typename Request, typename Handler, typename Answer>
  grpc::Status Handle(Handler handler, grpc::ServerContext* context, const grpc::ByteBuffer* bytes,
                      Answer* answer) {
    Request request;
    const absl::Status status = ParseRequest(*bytes, &request);
    if (!status.ok()) return ToGrpcStatus(status);
    return (handlers_.*handler)(context, &request, answer);
  }

  const std::string full_name_;
  Handlers& handlers_;
  std::list<std::string> names_;
};

}  // namespace retroinfer::common
