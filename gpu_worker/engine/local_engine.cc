// Invariants of the loop:
// * A request is in exactly one place of `live_` from Submit's mail to the release of its last
//   block.
// * Only kDecoding requests take part in steps; a request leaves a step's batch by changing state.
// * What a round does follows from one plan, and only Observe() looks at what the device, the
//   background and the store have done; what the plan cannot know (a request that ended as it was
//   carried out) makes it do less, never other things.
// * OnFinish is called in End() and nowhere else; End() makes the state kEnding, so it runs once.
//   Statistics are published before it. What fails while the engine observes ends by the plan.
// * The loop never waits for background work: a request that needs some is left out of steps.
// * Blocks return to the pools, and extents to the store, in LetGo() only, once the policy has said
//   that neither the background nor the device uses them any more.
#include "gpu_worker/engine/local_engine.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "common/clock/steady_now.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "gpu_worker/engine/request_errors.h"
#include "gpu_worker/engine/sampling_validation.h"
#include "gpu_worker/engine/segment_claim.h"
#include "spdlog/spdlog.h"

namespace retroinfer {
namespace {

constexpr absl::Duration kIdleWait = absl::Milliseconds(20);
constexpr absl::Duration kBlockedWait = absl::Microseconds(200);
// Background work steps back for decode steps, but no request waits for it much longer than this.
constexpr absl::Duration kBackgroundPatience = absl::Milliseconds(500);

}  // namespace

LocalEngine::LocalEngine(const LocalEngineOptions& options, EngineParts parts)
    : options_(options),
      parts_(std::move(parts)),
      inbox_(
          std::make_shared<Inbox>(Inbox::Limits{.max_live = options.max_live_requests,
                                                .max_waiting_tokens = options.max_waiting_tokens,
                                                .max_expected_wait = options.max_expected_wait})),
      stats_({.device = parts_.device,
              .memory = parts_.memory.get(),
              .cache = parts_.cache.get(),
              .store = parts_.store,
              .suspended = parts_.suspended.get(),
              .segments = parts_.segments.get()}) {
  const MemoryPlan& plan = options.plan;
  limits_ = {.max_model_len = plan.OfRequests(plan.max_model_len),
             .kv_capacity_tokens = {},
             .max_batch = plan.max_batch,
             .max_live_requests = static_cast<int64_t>(options.max_live_requests)};
  for (const PolicyEntry& entry : PolicyTable()) {
    if (plan.synthetic_tokens > 0 && !entry.takes_synthetic_contexts) continue;
    limits_.kv_capacity_tokens[entry.kind] = plan.OfRequests(plan.capacity_tokens[entry.kind]);
  }
}

absl::StatusOr<std::unique_ptr<LocalEngine>> LocalEngine::Start(const LocalEngineOptions& options,
                                                                EngineParts parts) {
  auto engine = absl::WrapUnique(new LocalEngine(options, std::move(parts)));
  RETURN_IF_ERROR(engine->CreateWorkspaces());
  engine->UpdateStats();
  engine->thread_ = std::thread([raw = engine.get()] { raw->Loop(); });
  ::pthread_setname_np(engine->thread_.native_handle(), "engine");
  return engine;
}

absl::Status LocalEngine::CreateWorkspaces() {
  const MemoryPlan& plan = options_.plan;
  ASSIGN_OR_RETURN(sampler_, Sampler::Create(*parts_.device, parts_.ops->model(), *parts_.stream,
                                             plan.max_batch, parts_.model->config().vocab_size));
  ASSIGN_OR_RETURN(decode_step_, DecodeStep::Create(*parts_.device, *parts_.stream, *parts_.model,
                                                    *sampler_, plan.max_batch));
  for (const int64_t max_tokens : {plan.long_lane_tokens, plan.short_lane_tokens}) {
    ASSIGN_OR_RETURN(auto lane, PrefillLane::Create({.device = parts_.device,
                                                     .ops = parts_.ops,
                                                     .stream = parts_.stream,
                                                     .model = parts_.model,
                                                     .arena = parts_.cache->device_arena()},
                                                    plan.geometry, max_tokens, plan.prefill_rows,
                                                    plan.max_batch));
    lanes_.push_back(std::move(lane));
  }
  scheduler_ = std::make_unique<Scheduler>(
      SchedulerOptions{.num_layers = plan.geometry.num_layers,
                       .max_rows = plan.prefill_rows,
                       .max_batch = plan.max_batch,
                       .inter_token_target = absl::ToDoubleSeconds(options_.inter_token_target),
                       .preempts = parts_.suspended != nullptr,
                       .ahead = options_.ahead});
  ASSIGN_OR_RETURN(clock_, WorkClock::Create(*parts_.device, *parts_.stream, scheduler_->costs()));
  if (options_.share_segments) {
    ASSIGN_OR_RETURN(saver_, BlockSaver::Create({.device = parts_.device,
                                                 .compute = parts_.stream,
                                                 .memory = parts_.memory.get(),
                                                 .store = parts_.store,
                                                 .arena = parts_.arena}));
  }
  batch_.reserve(static_cast<size_t>(plan.max_batch));
  return absl::OkStatus();
}

LocalEngine::~LocalEngine() {
  inbox_->Close();
  cancel_all_ = true;
  stopping_ = true;
  inbox_->Wake();
  if (thread_.joinable()) thread_.join();
}

absl::Status LocalEngine::Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) {
  RETURN_IF_ERROR(ValidateRequest(request, static_cast<int32_t>(parts_.model->config().vocab_size),
                                  limits_.max_model_len));
  RETURN_IF_ERROR(CheckFits(request));
  RI_CHECK(request.continuations.size() <= 1 ||
           CanMeasureTogether(request.attention, std::ssize(request.prompt),
                              request.sampling.max_tokens));
  // Hashing a long prompt takes milliseconds: on the caller's thread. A prompt that is measured is
  // computed from its first row on.
  NamedPrefix prefix;
  if (options_.share_segments && request.shares_kv && request.num_prompt_logprobs < 0 &&
      EntryOf(request.attention.policy).reads_segments) {
    prefix = NamePrefix(request.prompt, parts_.segments->settings().dense_below,
                        options_.segment_fingerprint, request.cache_salt);
  }
  return inbox_->Submit(
      {std::move(request), std::move(sink), common::SteadyNow(), std::move(prefix)});
}

bool LocalEngine::Abort(std::string_view request_id) { return inbox_->Abort(request_id); }

void LocalEngine::Drain(absl::Time deadline) {
  inbox_->Close();
  while (inbox_->AnyLive()) {
    if (common::SteadyNow() >= deadline) {
      cancel_all_ = true;
      inbox_->Wake();
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
}

EngineStats LocalEngine::stats() const {
  EngineStats stats;
  inbox_->ReadUncounted([&](const Inbox::Uncounted& uncounted) {
    stats = stats_.Read();
    stats.requests_waiting += uncounted.count;
    stats.oldest_waiting = std::min(stats.oldest_waiting, uncounted.oldest);
  });
  return stats;
}

void LocalEngine::StartCounting() {
  start_counting_ = true;
  inbox_->Wake();
  start_counting_.wait(true);
}

// --- Loop

void LocalEngine::Loop() {
  absl::Duration wait = kIdleWait;
  while (true) {
    TakeMail(wait);
    TendSaves();
    const bool worked = RunOnce();
    if (worked || live_.empty()) stats_.counters().last_progress = common::SteadyNow();
    if (start_counting_ && live_.empty()) stats_.RequireCacheStats();
    UpdateStats();
    if (options_.on_progress) options_.on_progress();
    stats_.EndRound();
    TendBackground(worked);
    if (start_counting_ && live_.empty()) {
      stats_.StartCounting();
      start_counting_ = false;
      start_counting_.notify_all();
    }
    if (stopping_ && live_.empty()) return;
    wait = worked ? absl::ZeroDuration() : (live_.empty() ? kIdleWait : kBlockedWait);
  }
}

bool LocalEngine::RunOnce() {
  Observe();
  StepPlan plan = scheduler_->Plan(input_);
  if (options_.on_plan) options_.on_plan(input_, plan);
  if (plan.empty()) return false;
  CarryOut(plan);
  return plan.concerns_requests();
}

// --- Mail

void LocalEngine::TakeMail(absl::Duration timeout) {
  Mail mail = inbox_->Take(timeout);
  stats_.BeginRound();
  for (Submission& submission : mail.submissions) TakeSubmission(std::move(submission));
  for (ReserveAnswer& answer : mail.answers) TakeAnswer(std::move(answer));
  for (const std::string& id : mail.aborts) {
    for (const auto& live : live_) {
      if (live->request.request_id == id) live->is_aborted = true;
    }
  }
}

void LocalEngine::TakeSubmission(Submission submission) {
  auto live = std::make_unique<LiveRequest>();
  live->request = std::move(submission.request);
  live->sink = std::move(submission.sink);
  live->submitted = submission.submitted;
  live->tenant =
      tenants_.Acquire(live->request.tenant == nullptr ? common::Tenant() : *live->request.tenant);
  live->policy = &PolicyOf(live->request);
  if (!live->request.continuations.empty()) live->forced.emplace(live->request.continuations);
  live->kv.sequence_id = next_sequence_id_++;
  live->kv.settings = live->request.attention;
  live->kv.prompt_tokens = static_cast<int64_t>(live->request.prompt.size());
  live->kv.total_tokens = live->kv.prompt_tokens + live->request.sampling.max_tokens;
  live->kv.prompt = live->request.prompt;
  live->kv.reads_whole = live->request.num_prompt_logprobs >= 0;
  live->kv.prefix = std::move(submission.prefix);
  std::optional<common::Hash256> made_by;
  if (live->request.reuse == KvReuse::kGenerated && !IsScoring(live->request)) {
    made_by = MadeBy(live->kv.settings, parts_.segments->settings());
  }
  live->kv.lineage = KvLineage(live->kv.prefix, live->kv.prompt, made_by);
  live->kv.lineage.SetCached({}, 0);
  live->prefix = prefixes_.Acquire(live->kv.prefix);
  live->need = live->policy->Need(live->kv.settings, live->kv.prompt_tokens, live->kv.total_tokens);
  live->demand = BlockDemand(*live->policy, live->kv.settings, live->kv.prompt_tokens,
                             live->request.sampling.max_tokens, options_.reserves_all);
  live->takes_in_order = live->policy->TakesInOrder(live->kv);
  live->output = std::make_unique<OutputProcessor>(*parts_.tokenizer, live->request.sampling,
                                                   options_.eos_token_ids);
  live_.push_back(std::move(live));
}

LiveRequest* LocalEngine::Find(uint64_t sequence_id) {
  const auto found = std::find_if(live_.begin(), live_.end(), [sequence_id](const auto& live) {
    return live->kv.sequence_id == sequence_id;
  });
  return found == live_.end() ? nullptr : found->get();
}

// --- Output

void LocalEngine::Emit(LiveRequest& live, const OutputToken& token) {
  if (parts_.store->memory_taken()) return EndBecauseMemoryWasTaken(live);
  ++live.num_generated;
  ++stats_.counters().generation_tokens;
  live.next_token = token.token;
  live.sampling->Count(token.token);
  live.kv.lineage.Append(token.token);
  const bool stop = live.output->Append(token);
  if (stop || live.num_generated >= live.request.sampling.max_tokens) {
    End(live, stop ? FinishReason::kStop : FinishReason::kLength);
    return;
  }
  if (OutputDelta delta = live.output->TakeDelta(); !delta.tokens.empty() || !delta.text.empty()) {
    live.sink->OnOutput(delta);
  }
}

// --- The end of a request

void LocalEngine::EndBecauseMemoryWasTaken(LiveRequest& live) {
  End(live, FinishReason::kError,
      absl::UnavailableError("another worker has taken the memory of this one; try again"));
}

void LocalEngine::End(LiveRequest& live, FinishReason reason, absl::Status status) {
  if (live.state == RequestState::kEnding) return;
  live.output->Flush();
  if (OutputDelta delta = live.output->TakeDelta(); !delta.tokens.empty() || !delta.text.empty()) {
    live.sink->OnOutput(delta);
  }
  if (!status.ok() && reason != FinishReason::kRefused) status = RequestFailure(status);
  // Before the client is told, whose next request finds then that its KV is on its way.
  if (status.ok()) SaveAtEnd(live);
  const GenerationResult result = ResultOf(live, reason, std::move(status));
  live.state = RequestState::kEnding;
  for (const auto& lane : lanes_) lane->Drop(live.kv);
  // One that was cancelled ends without waiting for the device.
  if (reason == FinishReason::kStop || reason == FinishReason::kLength) stats_.RequireCacheStats();
  UpdateStats();
  // First free the id and only then tell the client, who may use it again at once.
  inbox_->Forget(live.request.request_id);
  live.sink->OnFinish(result);
  live.sink.reset();
}

void LocalEngine::TendBackground(bool worked) {
  const absl::Time now = common::SteadyNow();
  const bool urgent = std::any_of(live_.begin(), live_.end(), [&](const auto& live) {
    // Without anything in the background.
    if (live->progressed == absl::Time() || live->copy.has_value()) return false;
    const bool is_waited_for = live->state != RequestState::kEnding;
    return !worked || (is_waited_for && now - live->progressed > kBackgroundPatience);
  });
  if (urgent == background_is_urgent_) return;
  background_is_urgent_ = urgent;
  parts_.segments->SetUrgent(urgent);
}

void LocalEngine::UpdateStats() {
  stats_.Update(CountRequests(live_), sampler_->waited_ns());
  inbox_->Publish([this] { stats_.Publish(); });
}

}  // namespace retroinfer
