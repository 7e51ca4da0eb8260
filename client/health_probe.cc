#include "client/health_probe.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include "absl/time/clock.h"
#include "retroinfer/rpc/v1/health.pb.h"

namespace retroinfer::client {
namespace {

constexpr char kMethod[] = "/grpc.health.v1.Health/Check";
constexpr int kReconnectMilliseconds = 100;

}  // namespace

HealthProbe::HealthProbe(const std::string& address) {
  grpc::ChannelArguments arguments;
  // The server is starting: try again soon.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, kReconnectMilliseconds);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, kReconnectMilliseconds);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  channel_ = grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

bool HealthProbe::IsServing(absl::Duration timeout) {
  grpc::TemplatedGenericStub<rpc::v1::HealthCheckRequest, rpc::v1::HealthCheckResponse> stub(
      channel_);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  context.set_wait_for_ready(true);  // a connection makes progress only while a call waits
  grpc::CompletionQueue queue;
  auto call = stub.PrepareUnaryCall(&context, kMethod, rpc::v1::HealthCheckRequest(), &queue);
  call->StartCall();
  rpc::v1::HealthCheckResponse response;
  grpc::Status status;
  call->Finish(&response, &status, nullptr);
  void* tag = nullptr;
  bool ok = false;
  queue.Next(&tag, &ok);
  return status.ok() && response.status() == rpc::v1::HealthCheckResponse::SERVING_STATUS_SERVING;
}

}  // namespace retroinfer::client
