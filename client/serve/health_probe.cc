#include "client/serve/health_probe.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include "absl/time/clock.h"
#include "common/rpc/grpc_status.h"
#include "common/status/status_macros.h"
#include "retroinfer/rpc/v1/health.pb.h"

namespace retroinfer::client {
namespace {

constexpr char kMethod[] = "/grpc.health.v1.Health/Check";
constexpr int kReconnectMilliseconds = 100;

// The server may be starting: tries again soon.
grpc::ChannelArguments Arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMilliseconds);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMilliseconds);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return arguments;
}

}  // namespace

HealthProbe::HealthProbe(const std::string& address)
    : open_([address](grpc::ChannelArguments arguments) {
        return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
      }) {}

absl::Status HealthProbe::Ask(const std::string& service, absl::Duration timeout,
                              bool wait_for_ready) {
  ASSIGN_OR_RETURN(const std::shared_ptr<grpc::Channel> channel, open_(Arguments()));
  grpc::TemplatedGenericStub<rpc::v1::HealthCheckRequest, rpc::v1::HealthCheckResponse> stub(
      channel);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  context.set_wait_for_ready(wait_for_ready);
  rpc::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::CompletionQueue queue;
  auto call = stub.PrepareUnaryCall(&context, kMethod, request, &queue);
  call->StartCall();
  rpc::v1::HealthCheckResponse response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  if (!status.ok()) return common::FromGrpcStatus(status);
  if (response.status() == rpc::v1::HealthCheckResponse::SERVING_STATUS_SERVING) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError("not serving");
}

absl::Status HealthProbe::Check(const std::string& service, absl::Duration timeout) {
  return Ask(service, timeout, /*wait_for_ready=*/false);
}

bool HealthProbe::IsServing(absl::Duration timeout) {
  // A connection makes progress only while a call waits.
  return Ask("", timeout, /*wait_for_ready=*/true).ok();
}

}  // namespace retroinfer::client
