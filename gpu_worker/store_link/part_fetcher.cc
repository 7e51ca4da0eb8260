#include "gpu_worker/store_link/part_fetcher.h"

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/grpc_status.h"

namespace retroinfer {
namespace {

constexpr int kMessageBytesMax = 64 << 20;

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 250);
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  arguments.SetMaxSendMessageSize(kMessageBytesMax);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace

PartFetcher::PartFetcher(const std::string& target)
    : stub_(kvstore::v1::KvStoreService::NewStub(MakeChannel(target))) {}

PartFetcher::~PartFetcher() {
  absl::MutexLock lock(&mutex_);
  for (Call& call : calls_) call.context.TryCancel();
  mutex_.Await(absl::Condition(this, &PartFetcher::IsQuiet));
}

void PartFetcher::Fetch(const std::string& token, const std::vector<PartsOfExtent>& wanted,
                        absl::Duration timeout, Callback callback) {
  std::list<Call>::iterator call;
  {
    absl::MutexLock lock(&mutex_);
    call = calls_.emplace(calls_.end());
    ++num_under_way_;
  }
  call->callback = std::move(callback);
  call->context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoSeconds(timeout));
  call->request.set_attach_token(token);
  for (const PartsOfExtent& parts : wanted) {
    kvstore::v1::WantedParts* added = call->request.add_wanted();
    added->set_extent_id(parts.extent_id);
    added->mutable_runs()->Add(parts.runs.begin(), parts.runs.end());
  }
  stub_->async()->FetchParts(&call->context, &call->request, &call->response,
                             [this, call](const grpc::Status& status) { Finish(call, status); });
}

void PartFetcher::Finish(std::list<Call>::iterator call, const grpc::Status& status) {
  absl::StatusOr<std::vector<uint32_t>> there;
  if (!status.ok()) {
    there = common::FromGrpcStatus(status);
  } else if (call->response.there_until_size() != call->request.wanted_size()) {
    there = absl::InternalError(absl::StrCat("the store answered for ",
                                             call->response.there_until_size(), " of ",
                                             call->request.wanted_size(), " segments"));
  } else {
    there = std::vector<uint32_t>(call->response.there_until().begin(),
                                  call->response.there_until().end());
  }
  const Callback callback = std::move(call->callback);
  {
    absl::MutexLock lock(&mutex_);
    calls_.erase(call);
  }
  callback(std::move(there));
  absl::MutexLock lock(&mutex_);
  --num_under_way_;
}

}  // namespace retroinfer
