#include "gpu_worker/server/context_service.h"

#include <algorithm>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "common/clock/steady_now.h"
#include "common/hash/segment_name.h"
#include "common/kv/segment_layout.h"
#include "common/log/check.h"
#include "common/rpc/bounded_service.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/message_codec.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"
#include "gpu_worker/engine/request_errors.h"
#include "gpu_worker/server/proto_time.h"

namespace retroinfer {
namespace {

namespace v1 = generation::v1;
namespace store = kvstore::v1;

constexpr size_t kMaxNameBytes = 256;
constexpr absl::Duration kCallTimeout = absl::Seconds(30);

absl::Status Invalid(const std::string& message) {
  return common::WithReason(absl::InvalidArgumentError(message), "INVALID_CONTEXT");
}

absl::Status CheckName(const std::string& name) {
  if (!name.empty() && name.size() <= kMaxNameBytes) return absl::OkStatus();
  return Invalid(absl::StrCat("the name of a context has 1 to ", kMaxNameBytes,
                              " bytes, this one has ", name.size()));
}

absl::StatusOr<std::string> SaltHashOf(const Caller& caller, const std::string& salt) {
  if (salt.size() > RequestReader::kMaxSaltBytes) {
    return Invalid(absl::StrCat("cache_salt has ", salt.size(), " bytes, at most ",
                                RequestReader::kMaxSaltBytes, " are allowed"));
  }
  return std::string(common::SaltHash(SaltOf(*caller, salt)).view());
}

void ToProto(const store::ContextInfo& from, v1::ContextInfo* to) {
  to->set_name(from.name());
  to->set_num_tokens(static_cast<int64_t>(from.num_tokens()));
  to->set_reusable_tokens(static_cast<int64_t>(from.reusable_tokens()));
  to->set_bytes(static_cast<int64_t>(from.bytes()));
  to->set_num_segments(static_cast<int32_t>(from.num_segments()));
  to->set_segments_in_arena(static_cast<int32_t>(from.segments_in_arena()));
  to->set_segments_on_disk(static_cast<int32_t>(from.segments_on_disk()));
  to->set_tier(static_cast<v1::ContextTier>(from.tier()));
  to->set_pinned(from.pinned());
  *to->mutable_created() = from.created();
  *to->mutable_last_used() = from.last_used();
  if (from.has_expires()) *to->mutable_expires() = from.expires();
}

// Prepares messages to the store about all contexts of a salt, and about one.
template <typename Request>
absl::StatusOr<store::ListContextsRequest> AllOf(const Caller& caller, const Request& request) {
  store::ListContextsRequest all;
  ASSIGN_OR_RETURN(*all.mutable_salt_hash(), SaltHashOf(caller, request.cache_salt()));
  return all;
}

template <typename StoreRequest, typename Request>
absl::StatusOr<StoreRequest> ForOne(const Caller& caller, const Request& request) {
  StoreRequest to_store;
  RETURN_IF_ERROR(CheckName(request.name()));
  ASSIGN_OR_RETURN(*to_store.mutable_salt_hash(), SaltHashOf(caller, request.cache_salt()));
  to_store.set_name(request.name());
  return to_store;
}

// Ends the call to the store when the client's call ends.
std::unique_ptr<grpc::ClientContext> ContextFor(const grpc::ServerContext& context,
                                                absl::Duration timeout) {
  auto to_store = grpc::ClientContext::FromServerContext(context);
  const auto own = absl::ToChronoTime(absl::Now() + timeout);
  if (timeout != absl::InfiniteDuration())
    to_store->set_deadline(std::min(own, context.deadline()));
  return to_store;
}

// What a request for text with this prompt would be, with as little output as commits the prompt's
// segments.
v1::GenerateRequest AsGenerate(const v1::SaveContextRequest& request) {
  v1::GenerateRequest generate;
  switch (request.input_case()) {
    case v1::SaveContextRequest::kText:
      generate.set_text(request.text());
      break;
    case v1::SaveContextRequest::kTokenIds:
      *generate.mutable_token_ids() = request.token_ids();
      break;
    case v1::SaveContextRequest::kMessages:
      *generate.mutable_messages() = request.messages();
      break;
    case v1::SaveContextRequest::INPUT_NOT_SET:
      break;
  }
  if (request.has_add_special_tokens()) {
    generate.set_add_special_tokens(request.add_special_tokens());
  }
  generate.set_request_id(absl::StrFormat("save-%016x", absl::Uniform<uint64_t>(absl::BitGen())));
  generate.set_cache_salt(request.cache_salt());
  generate.mutable_sampling()->set_temperature(0);
  generate.mutable_sampling()->set_max_tokens(2);
  generate.mutable_sampling()->set_ignore_eos(true);
  generate.mutable_attention()->set_policy(v1::ATTENTION_POLICY_WAVE);
  generate.mutable_attention()->set_prefill(v1::PREFILL_EXACT);  // what is kept is exact
  // A context is what computing its text gives.
  generate.set_reuse(v1::KV_REUSE_EXACT);
  return generate;
}

absl::StatusOr<absl::Duration> TimeToLive(const v1::SaveContextRequest& request) {
  if (!request.has_time_to_live()) return absl::InfiniteDuration();
  const google::protobuf::Duration& ttl = request.time_to_live();
  const absl::Duration duration = GetDuration(ttl);
  if (ttl.nanos() >= 0 && ttl.nanos() < 1'000'000'000 && duration > absl::ZeroDuration()) {
    return duration;
  }
  return Invalid("time_to_live must be more than 0");
}

}  // namespace

std::unique_ptr<grpc::Service> ContextServiceImpl::Bounded() {
  auto service = std::make_unique<common::BoundedService<ContextServiceImpl>>(
      v1::ContextService::service_full_name(), this);
  service->Add("SaveContext", &ContextServiceImpl::SaveContext);
  service->Add("ListContexts", &ContextServiceImpl::ListContexts);
  service->Add("PinContext", &ContextServiceImpl::PinContext);
  service->Add("UnpinContext", &ContextServiceImpl::UnpinContext);
  service->Add("RemoveContext", &ContextServiceImpl::RemoveContext);
  service->Add("VerifyContext", &ContextServiceImpl::VerifyContext);
  service->Add("ExportContext", &ContextServiceImpl::ExportContext);
  service->Add("ImportContext", &ContextServiceImpl::Import);
  return service;
}

void ContextServiceImpl::Serve(const ServedModel* model, Engine* engine) {
  absl::MutexLock lock(&mutex_);
  RI_CHECK(backend_ == nullptr);
  backend_ = std::make_unique<Backend>(model, engine);
}

void ContextServiceImpl::StartDraining() {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
}

bool ContextServiceImpl::IsOver(const grpc::ServerContext& context) const {
  if (context.IsCancelled()) return true;
  absl::MutexLock lock(&mutex_);
  return draining_;
}

absl::StatusOr<ContextServiceImpl::Backend*> ContextServiceImpl::Admit() {
  absl::MutexLock lock(&mutex_);
  if (draining_) return DrainingError();
  if (backend_ == nullptr) {
    return common::WithRetry(
        common::WithReason(absl::UnavailableError("the model is still loading"), "NOT_READY"),
        kRetryDelay);
  }
  if (open_calls_ >= kMaxCalls) {
    return common::WithRetry(common::WithReason(absl::ResourceExhaustedError(absl::StrCat(
                                                    kMaxCalls,
                                                    " calls about contexts are open; try "
                                                    "again when one has ended")),
                                                "TOO_MANY_CALLS"),
                             kRetryDelay);
  }
  ++open_calls_;
  return backend_.get();
}

template <typename Handle>
grpc::Status ContextServiceImpl::Run(const grpc::ServerContext& context, Handle handle) {
  const absl::StatusOr<Caller> caller = CallerOf(*keys_, context);
  if (!caller.ok()) return common::ToGrpcStatus(caller.status());
  const absl::StatusOr<Backend*> backend = Admit();
  if (!backend.ok()) return common::ToGrpcStatus(backend.status());
  const absl::Status status = handle(**backend, *caller);
  {
    absl::MutexLock lock(&mutex_);
    --open_calls_;
  }
  return common::ToGrpcStatus(status);
}

grpc::Status ContextServiceImpl::SaveContext(grpc::ServerContext* context,
                                             const v1::SaveContextRequest* request,
                                             grpc::ServerWriter<v1::SaveContextResponse>* writer) {
  return Run(*context, [&](Backend& backend, const Caller& caller) {
    writer->SendInitialMetadata();  // tells the door that the call has reached its handler
    return Save(backend, caller, *context, *request, writer);
  });
}

absl::Status ContextServiceImpl::CheckRoom(Backend& backend, const Caller& caller,
                                           const grpc::ServerContext& context,
                                           const std::string& cache_salt, const std::string& name) {
  if (caller->max_contexts == common::Tenant::kNoLimit) return absl::OkStatus();
  store::ListContextsRequest all;
  ASSIGN_OR_RETURN(*all.mutable_salt_hash(), SaltHashOf(caller, cache_salt));
  store::ListContextsResponse answer;
  RETURN_IF_ERROR(common::FromGrpcStatus(
      backend.store.stub().ListContexts(ContextFor(context, kCallTimeout).get(), all, &answer)));
  const auto is_it = [&](const store::ContextInfo& one) { return one.name() == name; };
  if (std::any_of(answer.contexts().begin(), answer.contexts().end(), is_it)) {
    return absl::OkStatus();  // takes the place of the old one
  }
  if (answer.contexts_size() < caller->max_contexts) return absl::OkStatus();
  return common::WithReason(
      absl::ResourceExhaustedError(absl::StrCat("tenant ", caller->name, " has ",
                                                answer.contexts_size(), " contexts, at most ",
                                                caller->max_contexts, " are allowed; remove one")),
      "TENANT_CONTEXT_LIMIT");
}

absl::Status ContextServiceImpl::Save(Backend& backend, const Caller& caller,
                                      const grpc::ServerContext& context,
                                      const v1::SaveContextRequest& request,
                                      grpc::ServerWriter<v1::SaveContextResponse>* writer) {
  const absl::Time begin = common::SteadyNow();
  RETURN_IF_ERROR(common::CheckKnownFields(request));
  RETURN_IF_ERROR(CheckName(request.name()));
  PrefixToSave prefix;
  prefix.name = request.name();
  prefix.pinned = request.pinned();
  prefix.replace = request.replace();
  ASSIGN_OR_RETURN(prefix.time_to_live, TimeToLive(request));
  ASSIGN_OR_RETURN(GenerateCall::Submission submission,
                   backend.reader.Read(AsGenerate(request), absl::InfiniteFuture(), caller));
  prefix.request = std::move(submission.continuations.front());
  RETURN_IF_ERROR(CheckRoom(backend, caller, context, request.cache_salt(), request.name()));
  ContextSaver saver(backend.model, backend.engine, &backend.store.stub());
  const auto on_progress = [writer](const PrefillProgress& progress) {
    v1::SaveContextResponse response;
    v1::PrefillProgress* proto = response.mutable_progress();
    proto->set_total_tokens(progress.total_tokens);
    proto->set_cached_tokens(progress.cached_tokens);
    proto->set_processed_tokens(progress.processed_tokens);
    SetDuration(progress.elapsed, proto->mutable_elapsed());
    writer->Write(response);
  };
  ASSIGN_OR_RETURN(const SavedPrefix saved,
                   saver.Save(std::move(prefix), on_progress, [&] { return IsOver(context); }));
  v1::SaveContextResponse response;
  ToProto(saved.context, response.mutable_saved()->mutable_context());
  response.mutable_saved()->set_computed_tokens(saved.computed_tokens);
  SetDuration(common::SteadyNow() - begin, response.mutable_saved()->mutable_elapsed());
  writer->Write(response);
  return absl::OkStatus();
}

grpc::Status ContextServiceImpl::ListContexts(grpc::ServerContext* context,
                                              const v1::ListContextsRequest* request,
                                              v1::ListContextsResponse* response) {
  return Run(*context, [&](Backend& backend, const Caller& caller) -> absl::Status {
    RETURN_IF_ERROR(common::CheckKnownFields(*request));
    ASSIGN_OR_RETURN(const store::ListContextsRequest all, AllOf(caller, *request));
    store::ListContextsResponse answer;
    RETURN_IF_ERROR(common::FromGrpcStatus(
        backend.store.stub().ListContexts(ContextFor(*context, kCallTimeout).get(), all, &answer)));
    for (const store::ContextInfo& info : answer.contexts())
      ToProto(info, response->add_contexts());
    return absl::OkStatus();
  });
}

grpc::Status ContextServiceImpl::PinContext(grpc::ServerContext* context,
                                            const v1::PinContextRequest* request,
                                            v1::PinContextResponse* response) {
  return Run(*context, [&](Backend& backend, const Caller& caller) -> absl::Status {
    RETURN_IF_ERROR(common::CheckKnownFields(*request));
    ASSIGN_OR_RETURN(const auto to_store, ForOne<store::PinContextRequest>(caller, *request));
    store::PinContextResponse answer;
    RETURN_IF_ERROR(common::FromGrpcStatus(backend.store.stub().PinContext(
        ContextFor(*context, kCallTimeout).get(), to_store, &answer)));
    ToProto(answer.context(), response->mutable_context());
    return absl::OkStatus();
  });
}

grpc::Status ContextServiceImpl::UnpinContext(grpc::ServerContext* context,
                                              const v1::UnpinContextRequest* request,
                                              v1::UnpinContextResponse* response) {
  return Run(*context, [&](Backend& backend, const Caller& caller) -> absl::Status {
    RETURN_IF_ERROR(common::CheckKnownFields(*request));
    ASSIGN_OR_RETURN(const auto to_store, ForOne<store::UnpinContextRequest>(caller, *request));
    store::UnpinContextResponse answer;
    RETURN_IF_ERROR(common::FromGrpcStatus(backend.store.stub().UnpinContext(
        ContextFor(*context, kCallTimeout).get(), to_store, &answer)));
    ToProto(answer.context(), response->mutable_context());
    return absl::OkStatus();
  });
}

grpc::Status ContextServiceImpl::RemoveContext(grpc::ServerContext* context,
                                               const v1::RemoveContextRequest* request,
                                               v1::RemoveContextResponse* response) {
  return Run(*context, [&](Backend& backend, const Caller& caller) -> absl::Status {
    RETURN_IF_ERROR(common::CheckKnownFields(*request));
    ASSIGN_OR_RETURN(const auto to_store, ForOne<store::RemoveContextRequest>(caller, *request));
    store::RemoveContextResponse answer;
    RETURN_IF_ERROR(common::FromGrpcStatus(backend.store.stub().RemoveContext(
        ContextFor(*context, kCallTimeout).get(), to_store, &answer)));
    response->set_removed_segments(static_cast<int32_t>(answer.removed_segments()));
    response->set_removed_bytes(static_cast<int64_t>(answer.removed_bytes()));
    return absl::OkStatus();
  });
}

grpc::Status ContextServiceImpl::VerifyContext(grpc::ServerContext* context,
                                               const v1::VerifyContextRequest* request,
                                               v1::VerifyContextResponse* response) {
  return Run(*context, [&](Backend& backend, const Caller& caller) -> absl::Status {
    RETURN_IF_ERROR(common::CheckKnownFields(*request));
    ASSIGN_OR_RETURN(const auto to_store, ForOne<store::VerifyContextRequest>(caller, *request));
    store::VerifyContextResponse answer;
    RETURN_IF_ERROR(common::FromGrpcStatus(backend.store.stub().VerifyContext(
        ContextFor(*context, absl::InfiniteDuration()).get(), to_store, &answer)));
    response->set_num_segments(static_cast<int32_t>(answer.num_segments()));
    response->set_intact_segments(static_cast<int32_t>(answer.intact_segments()));
    response->set_missing_segments(static_cast<int32_t>(answer.missing_segments()));
    response->set_damaged_segments(static_cast<int32_t>(answer.damaged_segments()));
    response->set_bytes_checked(static_cast<int64_t>(answer.bytes_checked()));
    *response->mutable_problems() = answer.problems();
    return absl::OkStatus();
  });
}

grpc::Status ContextServiceImpl::ExportContext(
    grpc::ServerContext* context, const v1::ExportContextRequest* request,
    grpc::ServerWriter<v1::ExportContextResponse>* writer) {
  return Run(*context, [&](Backend& backend, const Caller& caller) -> absl::Status {
    writer->SendInitialMetadata();
    RETURN_IF_ERROR(common::CheckKnownFields(*request));
    ASSIGN_OR_RETURN(const auto to_store, ForOne<store::ExportContextRequest>(caller, *request));
    const auto to_store_context = ContextFor(*context, absl::InfiniteDuration());
    const auto reader = backend.store.stub().ExportContext(to_store_context.get(), to_store);
    store::ExportContextResponse chunk;
    v1::ExportContextResponse response;
    while (reader->Read(&chunk)) {
      response.set_data(std::move(*chunk.mutable_data()));
      if (!writer->Write(response) || IsOver(*context)) to_store_context->TryCancel();
    }
    return common::FromGrpcStatus(reader->Finish());
  });
}

grpc::Status ContextServiceImpl::Import(grpc::ServerContext* context,
                                        common::BoundedReader<v1::ImportContextRequest>* reader,
                                        v1::ImportContextResponse* response) {
  return Run(*context, [&](Backend& backend, const Caller& caller) -> absl::Status {
    reader->SendInitialMetadata();
    v1::ImportContextRequest message;
    ASSIGN_OR_RETURN(bool goes_on, reader->Read(&message));
    if (!goes_on) return Invalid("there is no message");
    RETURN_IF_ERROR(CheckRoom(backend, caller, *context, message.cache_salt(), message.name()));
    store::ImportContextRequest chunk;
    ASSIGN_OR_RETURN(*chunk.mutable_salt_hash(), SaltHashOf(caller, message.cache_salt()));
    const common::Hash256 root =
        common::RootName(backend.model->segment_fingerprint,
                         common::SaltHash(SaltOf(*caller, message.cache_salt())), kSegmentVersion);
    chunk.set_root(std::string(root.view()));
    chunk.set_name(message.name());
    chunk.set_pinned(message.pinned());
    chunk.set_replace(message.replace());
    store::ImportContextResponse answer;
    const auto to_store_context = ContextFor(*context, absl::InfiniteDuration());
    const auto writer = backend.store.stub().ImportContext(to_store_context.get(), &answer);
    absl::Status of_client;
    while (goes_on) {
      chunk.set_data(std::move(*message.mutable_data()));
      if (!writer->Write(chunk) || IsOver(*context)) break;  // the store has its answer already
      chunk.Clear();
      const absl::StatusOr<bool> next = reader->Read(&message);
      of_client = next.status();
      goes_on = next.ok() && *next;
    }
    // Half a file must not look like a whole one.
    if (IsOver(*context) || !of_client.ok()) to_store_context->TryCancel();
    writer->WritesDone();
    const absl::Status of_store = common::FromGrpcStatus(writer->Finish());
    RETURN_IF_ERROR(of_client);
    RETURN_IF_ERROR(of_store);
    ToProto(answer.context(), response->mutable_context());
    response->set_written_segments(static_cast<int32_t>(answer.written_segments()));
    return absl::OkStatus();
  });
}

}  // namespace retroinfer
