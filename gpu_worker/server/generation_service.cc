#include "gpu_worker/server/generation_service.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/clock/steady_now.h"
#include "common/log/check.h"
#include "common/rpc/grpc_status.h"
#include "common/rpc/message_codec.h"
#include "common/rpc/policy_name.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"
#include "gpu_worker/engine/request_errors.h"
#include "gpu_worker/server/proto_time.h"
#include "gpu_worker/server/score_events.h"

namespace retroinfer {
namespace {

namespace v1 = generation::v1;

// One stream: passes events from its call to gRPC, and what gRPC says about it back. Deletes
// itself.
class GenerateReactor final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                              public EventStream {
 public:
  GenerateReactor(const GenerateCall::Context& context, absl::Time deadline,
                  std::function<grpc::ByteBuffer(const v1::GenerateResponse&)> encode,
                  std::function<void()> on_done)
      : call_(std::make_shared<GenerateCall>(context, this, deadline)),
        encode_(std::move(encode)),
        on_done_(std::move(on_done)) {}

  const std::shared_ptr<GenerateCall>& call() const { return call_; }

  void Write(const v1::GenerateResponse* event) override {
    outgoing_ = encode_(*event);
    StartWrite(&outgoing_);
  }
  void Finish(const absl::Status& status) override {
    ServerWriteReactor::Finish(common::ToGrpcStatus(status));
  }

  // Each holds the call, because this object may be deleted meanwhile.
  void OnWriteDone(bool ok) override {
    const std::shared_ptr<GenerateCall> call = call_;
    call->OnWriteDone(ok);
  }
  void OnCancel() override {
    const std::shared_ptr<GenerateCall> call = call_;
    call->OnCancelled();
  }
  void OnDone() override {
    on_done_();
    delete this;
  }

 private:
  const std::shared_ptr<GenerateCall> call_;
  const std::function<grpc::ByteBuffer(const v1::GenerateResponse&)> encode_;
  const std::function<void()> on_done_;
  grpc::ByteBuffer outgoing_;
};

// One call with one answer, which counts as unread until gRPC has sent it. Deletes itself.
class UnaryReactor final : public grpc::ServerUnaryReactor {
 public:
  // Returns: RESOURCE_EXHAUSTED with reason SLOW_CLIENT if as much may not be left unread.
  absl::Status Keep(const std::shared_ptr<PendingBudget>& budget, size_t bytes) {
    share_.emplace(budget);
    if (share_->Set(bytes)) return absl::OkStatus();
    share_.reset();
    return common::WithReason(
        absl::ResourceExhaustedError(absl::StrCat(
            "there is no room for an answer of ", bytes, " bytes: clients have left ",
            budget->bytes(), " bytes of others unread; read answers, or ask for less at a time")),
        "SLOW_CLIENT");
  }
  void OnDone() override { delete this; }

 private:
  std::optional<PendingBudget::Share> share_;
};

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return common::SteadyTimeOf(absl::FromChrono(deadline));
}

void FillStats(const Engine& engine, absl::Duration uptime, v1::WorkerStats* out) {
  const EngineStats stats = engine.stats();
  out->set_requests_running(stats.requests_running);
  out->set_requests_waiting(stats.requests_waiting);
  out->set_dense_blocks_used(stats.dense_blocks_used);
  out->set_dense_blocks_total(stats.dense_blocks_total);
  out->set_meta_blocks_used(stats.meta_blocks_used);
  out->set_meta_blocks_total(stats.meta_blocks_total);
  out->set_slots_used(stats.slots_used);
  out->set_slots_total(stats.slots_total);
  out->set_prompt_tokens_total(stats.prompt_tokens);
  out->set_generation_tokens_total(stats.generation_tokens);
  out->set_scored_prompt_tokens_total(stats.scored_prompt_tokens);
  out->set_scored_tokens_total(stats.scored_tokens);
  out->set_page_hits_total(stats.page_hits);
  out->set_page_misses_total(stats.page_misses);
  out->set_page_transients_total(stats.page_transients);
  out->set_page_evictions_total(stats.page_evictions);
  out->set_decode_steps_total(stats.decode_steps);
  out->set_store_attached(stats.store_attached);
  SetDuration(uptime, out->mutable_uptime());
  out->set_requests_waiting_for_prefill(stats.requests_waiting_for_prefill);
  out->set_max_live_requests(engine.limits().max_live_requests);
  SetDuration(OldestWaiting(stats, common::SteadyNow()), out->mutable_oldest_waiting());
}

}  // namespace

GenerationServiceImpl::GenerationServiceImpl(const Settings& settings)
    : settings_(settings),
      pending_(std::make_shared<PendingBudget>(settings.max_pending_bytes_total)) {}

void GenerationServiceImpl::Serve(const ServedModel* model, Engine* engine) {
  absl::MutexLock lock(&mutex_);
  RI_CHECK(backend_ == nullptr);
  backend_ = std::make_unique<Backend>(
      Backend{model, engine, RequestReader(*model, engine->limits().max_model_len)});
}

void GenerationServiceImpl::StartDraining() { draining_ = true; }

void GenerationServiceImpl::AwaitNoCalls(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return open_calls_ == 0; };
  mutex_.AwaitWithTimeout(absl::Condition(&none), timeout);
}

void GenerationServiceImpl::OnGenerateDone() {
  absl::MutexLock lock(&mutex_);
  --open_calls_;
}

absl::StatusOr<const GenerationServiceImpl::Backend*> GenerationServiceImpl::FindBackend() const {
  absl::MutexLock lock(&mutex_);
  if (backend_ == nullptr) {
    return common::WithRetry(
        common::WithReason(absl::UnavailableError("the model is still loading"), "NOT_READY"),
        kRetryDelay);
  }
  return backend_.get();
}

absl::StatusOr<const GenerationServiceImpl::Backend*> GenerationServiceImpl::AdmitGenerate() const {
  if (draining_) {
    return DrainingError();
  }
  return FindBackend();
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerationServiceImpl::Generate(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  const auto encode = [](const v1::GenerateResponse& event) {
    return common::SerializeResponse(event);
  };
  return StartCall(
      context, request, encode,
      [](const Backend& backend, const Caller& caller, const grpc::ByteBuffer& bytes,
         absl::Time deadline, std::string* request_id) -> absl::StatusOr<GenerateCall::Submission> {
        v1::GenerateRequest message;
        const absl::Status status = common::ParseRequest(bytes, &message);
        *request_id = message.request_id();
        RETURN_IF_ERROR(status);
        return backend.reader.Read(message, deadline, caller);
      });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerationServiceImpl::Score(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  const auto encode = [events = ScoreEvents()](const v1::GenerateResponse& event) mutable {
    return common::SerializeResponse(events.Next(event));
  };
  return StartCall(
      context, request, encode,
      [](const Backend& backend, const Caller& caller, const grpc::ByteBuffer& bytes,
         absl::Time deadline, std::string* request_id) -> absl::StatusOr<GenerateCall::Submission> {
        v1::ScoreRequest message;
        const absl::Status status = common::ParseRequest(bytes, &message);
        *request_id = message.request_id();
        RETURN_IF_ERROR(status);
        return backend.reader.ReadScore(message, deadline, *backend.engine, caller);
      });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* GenerationServiceImpl::StartCall(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request, EncodeEvent encode,
    ReadSubmission read) {
  const absl::StatusOr<Caller> caller = CallerOf(*settings_.keys, *context);
  const absl::StatusOr<const Backend*> backend =
      caller.ok() ? AdmitGenerate() : absl::StatusOr<const Backend*>(caller.status());
  {
    absl::MutexLock lock(&mutex_);
    ++open_calls_;
  }
  Engine* const engine = backend.ok() ? (*backend)->engine : nullptr;
  auto* const reactor =
      new GenerateReactor({engine, settings_.sender, settings_.observer,
                           settings_.max_pending_bytes, pending_, &draining_},
                          DeadlineOf(*context), std::move(encode), [this] { OnGenerateDone(); });
  // From here on the reactor may be gone at any time; its call is shared.
  const std::shared_ptr<GenerateCall> call = reactor->call();
  if (!backend.ok()) {
    call->Refuse("", backend.status());
    return reactor;
  }
  settings_.admission->Post([call, reactor, backend = *backend, caller = *caller,
                             bytes = grpc::ByteBuffer(*request), read = std::move(read),
                             deadline = DeadlineOf(*context)] {
    if (call->cancelled()) {
      return call->Refuse(
          "", common::WithReason(absl::CancelledError("the client is gone"), "CANCELLED"));
    }
    // Tells the door that the request waits no more. The reactor lives until Submit() or Refuse().
    reactor->StartSendInitialMetadata();
    std::string request_id;
    auto submission = read(*backend, caller, bytes, deadline, &request_id);
    if (!submission.ok()) return call->Refuse(request_id, submission.status());
    call->Submit(*std::move(submission));
  });
  return reactor;
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* GenerationServiceImpl::RunUnary(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request,
    grpc::ByteBuffer* response,
    std::function<absl::StatusOr<Response>(const Backend&, const Caller&, const Request&)> handle) {
  auto* const reactor = new UnaryReactor;
  absl::StatusOr<Caller> caller = CallerOf(*settings_.keys, *context);
  if (!caller.ok()) {
    reactor->Finish(common::ToGrpcStatus(caller.status()));
    return reactor;
  }
  settings_.admission->Post(
      [this, reactor, request, response, caller = *std::move(caller), handle = std::move(handle)] {
        const auto run = [&]() -> absl::Status {
          Request message;
          RETURN_IF_ERROR(common::ParseRequest(*request, &message));
          ASSIGN_OR_RETURN(const Backend* const backend, FindBackend());
          ASSIGN_OR_RETURN(const Response answer, handle(*backend, caller, message));
          RETURN_IF_ERROR(reactor->Keep(pending_, answer.ByteSizeLong()));
          *response = common::SerializeResponse(answer);
          return absl::OkStatus();
        };
        reactor->Finish(common::ToGrpcStatus(run()));
      });
  return reactor;
}

grpc::ServerUnaryReactor* GenerationServiceImpl::Tokenize(grpc::CallbackServerContext* context,
                                                          const grpc::ByteBuffer* request,
                                                          grpc::ByteBuffer* response) {
  return RunUnary<v1::TokenizeRequest, v1::TokenizeResponse>(
      context, request, response,
      [](const Backend& backend, const Caller&,
         const v1::TokenizeRequest& message) -> absl::StatusOr<v1::TokenizeResponse> {
        ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, backend.reader.Tokenize(message));
        v1::TokenizeResponse answer;
        answer.mutable_token_ids()->Assign(tokens.begin(), tokens.end());
        answer.set_max_model_len(backend.engine->limits().max_model_len);
        return answer;
      });
}

grpc::ServerUnaryReactor* GenerationServiceImpl::Detokenize(grpc::CallbackServerContext* context,
                                                            const grpc::ByteBuffer* request,
                                                            grpc::ByteBuffer* response) {
  return RunUnary<v1::DetokenizeRequest, v1::DetokenizeResponse>(
      context, request, response,
      [](const Backend& backend, const Caller&,
         const v1::DetokenizeRequest& message) -> absl::StatusOr<v1::DetokenizeResponse> {
        v1::DetokenizeResponse answer;
        ASSIGN_OR_RETURN(*answer.mutable_text(), backend.reader.Detokenize(message));
        return answer;
      });
}

grpc::ServerUnaryReactor* GenerationServiceImpl::GetModelInfo(grpc::CallbackServerContext* context,
                                                              const grpc::ByteBuffer* request,
                                                              grpc::ByteBuffer* response) {
  return RunUnary<v1::GetModelInfoRequest, v1::GetModelInfoResponse>(
      context, request, response,
      [this](const Backend& backend, const Caller&, const v1::GetModelInfoRequest&) {
        return DescribeModel(backend);
      });
}

absl::StatusOr<v1::GetModelInfoResponse> GenerationServiceImpl::DescribeModel(
    const Backend& backend) const {
  const ServedModel& model = *backend.model;
  const EngineLimits& limits = backend.engine->limits();
  v1::GetModelInfoResponse info;
  info.set_model_name(model.name);
  info.set_architecture(model.architecture);
  info.set_vocab_size(model.vocab_size);
  info.set_num_layers(model.num_layers);
  info.set_num_query_heads(model.num_query_heads);
  info.set_num_kv_heads(model.num_kv_heads);
  info.set_head_dim(model.head_dim);
  info.set_compute_dtype(model.compute_dtype);
  info.set_kv_dtype(model.kv_dtype);
  info.set_index_dtype(model.index_dtype);
  info.set_weights_dtype(model.weights_dtype);
  info.set_weight_scales(model.weight_scales);
  info.set_backend(model.backend);
  info.set_device_name(model.device_name);
  info.mutable_eos_token_ids()->Assign(model.eos_token_ids.begin(), model.eos_token_ids.end());
  info.set_chat_template(model.chat_template->source());
  info.set_chat_template_fingerprint(model.chat_template->fingerprint());
  info.set_chat_template_problem(model.chat_template->problem());
  info.set_has_tool_template(model.chat_template->has_tool_template());
  info.set_max_model_len(limits.max_model_len);
  info.set_kv_capacity_tokens_full(limits.kv_capacity_tokens[PolicyKind::kFull]);
  info.set_kv_capacity_tokens_wave(limits.kv_capacity_tokens[PolicyKind::kWave]);
  for (size_t i = 0; i < kNumPolicies; ++i) {
    v1::PolicyCapacity& capacity = *info.add_kv_capacities();
    capacity.set_policy(*common::PolicyNamed(kPolicyNames[i]));
    capacity.set_tokens(limits.kv_capacity_tokens.tokens[i]);
  }
  info.set_max_batch(limits.max_batch);
  info.set_default_max_tokens(model.default_sampling.max_tokens);
  *info.mutable_default_attention() = backend.reader.DefaultAttention();
  *info.mutable_default_sampling() = backend.reader.DefaultSampling();
  info.set_model_fingerprint(model.subject.fingerprint);
  info.set_wave_index(model.subject.wave_index);
  info.set_quality(model.subject.quality);
  info.set_min_retrieved_clusters(model.min_retrieved);
  if (model.retrieval.has_value()) {
    for (const common::RetrievalFile::Budget& budget : model.retrieval->budgets) {
      v1::RetrievalBudget& out = *info.add_retrieval_budgets();
      out.set_context_tokens(budget.chosen.context);
      out.set_retrieval_ratio(budget.chosen.ratio);
    }
  }
  info.set_server_version(settings_.version);
  info.set_server_revision(settings_.revision);
  info.set_load_format(model.load_format);
  info.set_synthetic_context_tokens(model.synthetic_context);
  if (model.synthetic_overlap) info.set_synthetic_overlap(*model.synthetic_overlap);
  FillStats(*backend.engine, common::SteadyNow() - started_, info.mutable_stats());
  return info;
}

bool GenerationServiceImpl::AbortAll(Engine& engine, const std::string& request_id) const {
  bool found = false;
  for (int i = 0; i < RequestReader::kMaxEngineRequests; ++i) {
    found |= engine.Abort(GenerateCall::EngineRequestId(request_id, i));
  }
  return found;
}

grpc::ServerUnaryReactor* GenerationServiceImpl::Abort(grpc::CallbackServerContext* context,
                                                       const grpc::ByteBuffer* request,
                                                       grpc::ByteBuffer* response) {
  return RunUnary<v1::AbortRequest, v1::AbortResponse>(
      context, request, response,
      [this](const Backend& backend, const Caller& caller,
             const v1::AbortRequest& message) -> absl::StatusOr<v1::AbortResponse> {
        if (message.request_id().empty()) {
          return common::WithReason(absl::InvalidArgumentError("request_id is empty"),
                                    "INVALID_REQUEST");
        }
        v1::AbortResponse answer;
        answer.set_found(AbortAll(*backend.engine, ScopedRequestId(*caller, message.request_id())));
        return answer;
      });
}

}  // namespace retroinfer
