#include "gpu_worker/store_link/context_client.h"

namespace retroinfer {
namespace {

constexpr int kMessageBytesMax = 64 << 20;  // a tenant may have thousands of contexts

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 250);
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

ContextClient::ContextClient(const std::string& target)
    : stub_(kvstore::v1::ContextStoreService::NewStub(MakeChannel(target))) {}

}  // namespace retroinfer
