// Invariants of the loop:
// * A request is one element of `live_` from Submit's mail to the release of its last block, and in
//   exactly one phase (RequestPhase).
// * Only kDecoding requests take part in steps; a request leaves a step's batch by changing phase.
// * What a round does follows from one plan, and only Observation looks at what the device, the
//   background and the store have done. If a request ends while the plan is carried out, the round
//   does less than planned, never anything else.
// * A request ends in OutputDelivery::End(), once; statistics are published before its client is
//   told. What fails while the engine observes ends by the plan.
// * The loop never waits for background work: a request that needs some is left out of steps.
#include "gpu_worker/engine/local_engine.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "common/clock/steady_now.h"
#include "common/log/check.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"
#include "gpu_worker/engine/draft_tending.h"
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

bool IsPromptOnly(const GenerationRequest& request) {
  return IsScoring(request) && request.continuations.empty();
}

}  // namespace

LocalEngine::LocalEngine(const LocalEngineOptions& options, const EngineParts& parts,
                         std::unique_ptr<Scheduler> scheduler, std::unique_ptr<Executor> executor,
                         std::unique_ptr<CommandRunner> commands)
    : options_(options),
      tokenizer_(*parts.tokenizer),
      store_(*parts.store),
      inbox_(
          std::make_shared<Inbox>(Inbox::Limits{.max_live = options.max_live_requests,
                                                .max_waiting_tokens = options.max_waiting_tokens,
                                                .max_expected_wait = options.max_expected_wait})),
      scheduler_(std::move(scheduler)),
      executor_(std::move(executor)),
      commands_(std::move(commands)),
      stats_({.device = executor_->parts().device,
              .memory = executor_->parts().memory.get(),
              .cache = executor_->parts().cache.get(),
              .store = parts.store,
              .suspended = executor_->parts().suspended.get(),
              .segments = executor_->parts().segments.get()}),
      exchange_(store_, inbox_, MakeSaver(), options.plan.heads.ArenaOf(options.plan.geometry),
                stats_.counters()),
      growth_(*commands_, exchange_, store_.arena_pages()),
      observation_({.executor = executor_.get(),
                    .exchange = &exchange_,
                    .store = parts.store,
                    .tenants = &tenants_,
                    .counters = &stats_.counters(),
                    .draft_model = &draft_model_record_}),
      delivery_({.store = parts.store,
                 .exchange = &exchange_,
                 .carry_out =
                     [this](StepCommand command) {
                       CommandResult result;
                       commands_->CarryOut(command, result);
                       RI_CHECK(result.refused.ok());
                     },
                 .inbox = inbox_.get(),
                 .output = &output_,
                 .stats = &stats_,
                 .publish = [this] { UpdateStats(); }}),
      runner_({.live = &live_,
               .commands = commands_.get(),
               .exchange = &exchange_,
               .delivery = &delivery_,
               .observation = &observation_,
               .inbox = inbox_.get(),
               .tenants = &tenants_,
               .prefixes = &prefixes_,
               .counters = &stats_.counters(),
               .publish = [this] { UpdateStats(); }}) {
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

std::unique_ptr<BlockSaver> LocalEngine::MakeSaver() {
  // Blocks have no tail: a prompt could not go on behind them in window layers.
  if (!options_.share_segments || options_.plan.geometry.has_window_layers()) return nullptr;
  const auto carry_out = [this](StepCommand command) {
    CommandResult result;
    commands_->CarryOut(command, result);
    return result.unsaved.empty() ? result.refused : result.unsaved.front().status;
  };
  return std::make_unique<BlockSaver>(BlockSaver::Parts{
      .store = &store_,
      .copy =
          [carry_out](StepCommand::Save save) {
            StepCommand command;
            command.save.push_back(std::move(save));
            return carry_out(std::move(command));
          },
      .is_copied = [this](uint64_t save_id) { return commands_->copier().IsDone(save_id); },
      .end_copy =
          [carry_out](uint64_t save_id) { RI_CHECK(carry_out({.end_save = {save_id}}).ok()); }});
}

absl::StatusOr<std::unique_ptr<LocalEngine>> LocalEngine::Start(const LocalEngineOptions& options,
                                                                EngineParts parts) {
  const MemoryPlan& plan = options.plan;
  auto scheduler = std::make_unique<Scheduler>(
      SchedulerOptions{.num_layers = plan.geometry.num_model_layers(),
                       .max_rows = plan.prefill_rows,
                       .max_batch = plan.max_batch,
                       .more_tail_rows = plan.max_step_rows - plan.max_batch,
                       .inter_token_target = absl::ToDoubleSeconds(options.inter_token_target),
                       .preempts = parts.executor.suspended != nullptr,
                       .ahead = options.ahead});
  ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor,
                   Executor::Create(std::move(parts.executor),
                                    {.geometry = plan.geometry,
                                     .max_batch = plan.max_step_rows,
                                     .max_rows = plan.prefill_rows,
                                     .lane_tokens = {plan.long_lane_tokens, plan.short_lane_tokens},
                                     .sparse = options.sparse},
                                    scheduler->costs()));
  ASSIGN_OR_RETURN(std::unique_ptr<CommandRunner> commands,
                   CommandRunner::Create(*executor, parts.arena, options.hooks));
  auto engine = absl::WrapUnique(new LocalEngine(options, parts, std::move(scheduler),
                                                 std::move(executor), std::move(commands)));
  engine->UpdateStats();
  engine->thread_ = std::thread([raw = engine.get()] { raw->Loop(); });
  ::pthread_setname_np(engine->thread_.native_handle(), "engine");
  return engine;
}

LocalEngine::~LocalEngine() {
  inbox_->Close();
  cancel_all_ = true;
  stopping_ = true;
  inbox_->Wake();
  if (thread_.joinable()) thread_.join();
}

absl::Status LocalEngine::Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) {
  RETURN_IF_ERROR(
      ValidateRequest(request, static_cast<int32_t>(executor_->parts().model->config().vocab_size),
                      limits_.max_model_len));
  RETURN_IF_ERROR(SettlePrefill(request));
  if (request.open_ended) ShortenToFit(request);
  RETURN_IF_ERROR(CheckFits(request));
  RI_CHECK(request.continuations.size() <= 1 ||
           CanMeasureTogether(request.attention, std::ssize(request.prompt),
                              request.sampling.max_tokens));
  // Hashing a long prompt takes milliseconds: on the caller's thread.
  NamedPrefix prefix;
  const bool keeps_kv = !IsPromptOnly(request);
  if (options_.share_segments && request.shares_kv && keeps_kv &&
      EntryOf(request.attention.policy).reads_segments) {
    const auto head = request.prompt.size() - static_cast<size_t>(GivenTokens(request));
    prefix = NamePrefix(std::span<const int32_t>(request.prompt).first(head),
                        executor_->parts().segments->settings().dense_below,
                        options_.segment_fingerprint, request.cache_salt,
                        HowPrefilled(request.attention, options_.sparse));
  }
  return inbox_->Submit(
      {std::move(request), std::move(sink), common::SteadyNow(), std::move(prefix)});
}

absl::Status LocalEngine::SettlePrefill(GenerationRequest& request) const {
  PrefillKind& prefill = request.attention.prefill;
  if (prefill == PrefillKind::kExact) return absl::OkStatus();
  if (prefill == PrefillKind::kIndexed) {
    if (GivenTokens(request) == 0) prefill = PrefillKind::kExact;
    request.attention.tail_run = options_.plan.tail_run;
    return absl::OkStatus();
  }
  if (executor_->sizes().max_rows < kQueryUnit) {
    return common::WithReason(
        absl::InvalidArgumentError(absl::StrCat("sparse prefill needs passes of ", kQueryUnit,
                                                " rows, there are ", executor_->sizes().max_rows,
                                                ": leave prefill out, or set it to exact")),
        "INVALID_ATTENTION");
  }
  // The KV of such a prompt is exact, and shared as such.
  if (std::ssize(request.prompt) <= options_.sparse.dense_before) prefill = PrefillKind::kExact;
  return absl::OkStatus();
}

bool LocalEngine::CanMeasureTogether(const AttentionSettings& attention, int64_t prompt_tokens,
                                     int64_t continuation_tokens) const {
  const ExecutorParts& parts = executor_->parts();
  const int64_t total_tokens = prompt_tokens + continuation_tokens;
  if (parts.windows != nullptr && !parts.windows->Holds(total_tokens, prompt_tokens)) return false;
  return parts.policies.Of(attention.policy).CanRewind(attention, prompt_tokens, total_tokens);
}

int64_t LocalEngine::GivenTokens(const GenerationRequest& request) const {
  const AttentionSettings& attention = request.attention;
  if (attention.prefill != PrefillKind::kIndexed || attention.policy != PolicyKind::kWave) return 0;
  // Log-probabilities of a prompt are those of its prefill, and what is measured follows one.
  if (IsScoring(request) || request.num_prompt_logprobs >= 0) return 0;
  const int64_t prompt = std::ssize(request.prompt);
  const int64_t blocks = (prompt - attention.tail_tokens - kSinkTokens) / kDenseBlockTokens;
  const int64_t head = kSinkTokens + blocks * kDenseBlockTokens;
  // A shorter head has no index. Window layers keep of a head what its last rows see.
  const bool has_index = head >= executor_->parts().segments->settings().dense_below;
  return has_index && executor_->parts().windows == nullptr ? prompt - head : 0;
}

AttentionPolicy& LocalEngine::PolicyOf(const GenerationRequest& request) const {
  return commands_->PolicyOf(request.attention.policy, IsPromptOnly(request));
}

absl::Status LocalEngine::CheckFits(const GenerationRequest& request) const {
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t total = prompt + AnswerGrowth::TokensAtFirst(request);
  const int64_t head = prompt - GivenTokens(request);
  const KvNeed need = PolicyOf(request).Need(request.attention, head, total);
  const KvGeometry in_arena = options_.plan.heads.ArenaOf(options_.plan.geometry);
  uint64_t pages = 0;
  for (const uint32_t tokens : need.segment_tokens) {
    pages += SegmentLayout(in_arena, tokens).max_pages;
  }
  if (need.lane_tokens != 0 && request.num_prompt_logprobs >= 0) {
    return common::WithReason(
        absl::InvalidArgumentError(
            "log-probabilities of a prompt need a policy that reads it whole: full or wave"),
        "INVALID_ATTENTION");
  }
  const KvMemory& memory = *executor_->parts().memory;
  const int64_t longest_lane = executor_->lane(0).max_tokens();
  const int64_t lane_tokens = need.lane_tokens == 0 ? head : need.lane_tokens;
  if (lane_tokens <= longest_lane && memory.CouldFit(need) && pages <= store_.arena_pages() &&
      limits_.kv_capacity_tokens[request.attention.policy] > 0) {
    return absl::OkStatus();
  }
  if (need.lane_tokens != 0 && total <= limits_.kv_capacity_tokens[request.attention.policy]) {
    return SettingsExceededError(request.attention.policy, need.dense_blocks, lane_tokens,
                                 memory.dense_blocks().total(), longest_lane);
  }
  return CapacityExceededError(prompt, request.sampling.max_tokens, limits_.kv_capacity_tokens,
                               request.attention.policy);
}

// An answer that cannot even begin as open-ended ones do gets the length that fits. Memory grows
// with the length, so that length is found by halving.
void LocalEngine::ShortenToFit(GenerationRequest& request) const {
  if (CheckFits(request).ok()) return;
  const int32_t wanted = request.sampling.max_tokens;
  request.open_ended = false;
  int32_t fits = std::max(1, request.sampling.min_tokens), too_long = wanted;
  while (too_long - fits > 1) {
    request.sampling.max_tokens = fits + (too_long - fits) / 2;
    (CheckFits(request).ok() ? fits : too_long) = request.sampling.max_tokens;
  }
  request.sampling.max_tokens = fits;
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
  output_.Drain();
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
    exchange_.Tend();
    growth_.Tend(live_);
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
  TendDrafts(live_, executor_->parts().draft_model.get());
  const bool forgets_costs = forget_costs_.exchange(false);
  if (forgets_costs) draft_model_record_ = {};
  const SchedulerInput& input = observation_.Observe(live_, cancel_all_, forgets_costs);
  TellExpectedWait(input);
  StepPlan plan = scheduler_->Plan(input);
  if (options_.on_plan) options_.on_plan(input, plan);
  executor_->TendCache();
  if (plan.empty()) return false;
  runner_.CarryOut(plan);
  return true;
}

void LocalEngine::TellExpectedWait(const SchedulerInput& input) {
  constexpr absl::Duration kInterval = absl::Milliseconds(50);
  const absl::Time now = common::SteadyNow();
  if (now < next_expected_wait_) return;
  next_expected_wait_ = now + kInterval;
  inbox_->SetExpectedWait(absl::Seconds(scheduler_->ExpectedWait(input)));
}

// --- Mail

void LocalEngine::TakeMail(absl::Duration timeout) {
  Mail mail = inbox_->Take(timeout);
  stats_.BeginRound();
  for (Submission& submission : mail.submissions) TakeSubmission(std::move(submission));
  for (ReserveAnswer& answer : mail.answers) exchange_.TakeAnswer(std::move(answer), live_);
  for (const std::string& id : mail.aborts) {
    for (const auto& live : live_) {
      if (live->request.request_id == id) live->is_aborted = true;
    }
  }
}

void LocalEngine::TakeSubmission(Submission submission) {
  auto live = std::make_unique<LiveRequest>();
  live->request = std::move(submission.request);
  live->submitted = submission.submitted;
  const GenerationRequest& request = live->request;
  live->tenant = tenants_.Acquire(request.tenant == nullptr ? common::Tenant() : *request.tenant);
  if (!request.continuations.empty()) live->forced.emplace(request.continuations);
  PrepareOutput(*live, std::move(submission.sink), tokenizer_, options_.eos_token_ids);
  live->sequence = Open(*live);
  Sequence& sequence = *live->sequence;
  SequenceKv& kv = sequence.kv;
  kv.prefix = std::move(submission.prefix);
  std::optional<common::Hash256> made_by;
  if (request.reuse == KvReuse::kGenerated && !IsScoring(request)) {
    made_by = MadeBy(kv.settings, executor_->parts().segments->settings());
  }
  const bool is_sparse = kv.settings.prefill == PrefillKind::kSparse;
  // Rows of a unit that the prompt does not fill attend to all: in a longer prompt they would not.
  const int64_t alike_end =
      is_sparse ? EndOfUnits(0, kv.prompt_tokens, kv.prompt_tokens + kQueryUnit) : kv.prompt_tokens;
  kv.lineage = KvLineage(kv.prefix, kv.prompt, made_by, alike_end);
  kv.lineage.SetCached({}, 0);
  // Steps make their KV as they make that of generated tokens.
  for (int64_t i = 0; i < kv.given_tokens; ++i) {
    kv.lineage.Append(kv.prompt.data()[std::ssize(kv.prompt) + i]);
  }
  const int64_t rows_of_run = sequence.policy->RowsOfRun(kv);
  if (rows_of_run > 1) kv.lineage.SetRuns(kv.given_tokens, rows_of_run);
  live->prefix = prefixes_.Acquire(kv.prefix);
  // No run of its rows is read for several prompts.
  if (kv.reads_whole || is_sparse) live->prefix = 0;
  live->need = sequence.policy->Need(kv.settings, kv.prompt_tokens, kv.total_tokens);
  live->demand = BlockDemand(*sequence.policy, kv.settings, kv.prompt_tokens,
                             kv.total_tokens - kv.prompt_tokens, options_.reserves_all);
  live->takes_in_order = sequence.policy->TakesInOrder(kv);
  if (options_.drafts && request.drafts && !IsScoring(request)) {
    live->drafting.emplace(kv.whole_prompt(), request.prediction);
    if (executor_->parts().draft_model != nullptr) live->drafting->AddModel(draft_model_record_);
  }
  live_.push_back(std::move(live));
}

// The prompt moves into the sequence.
Sequence* LocalEngine::Open(LiveRequest& live) {
  GenerationRequest& request = live.request;
  StepCommand command;
  StepCommand::Open& open = command.open.emplace_back();
  open.id = next_sequence_id_++;
  open.total_tokens = std::ssize(request.prompt) + AnswerGrowth::TokensAtFirst(request);
  open.given_tokens = GivenTokens(request);
  open.prompt = std::move(request.prompt);
  open.attention = request.attention;
  open.sampling = request.sampling;
  open.sampling.stop.clear();  // of text: OutputProcessor
  open.eos_token_ids = options_.eos_token_ids;
  open.is_prompt_only = IsPromptOnly(request);
  open.num_prompt_logprobs = request.num_prompt_logprobs;
  if (live.forced.has_value()) open.first_targets = live.forced->Firsts();
  CommandResult result;
  commands_->CarryOut(command, result);
  RI_CHECK(result.refused.ok());  // Submit() has checked what the runner checks
  return commands_->Find(open.id);
}

// Background work gives way to decode steps, unless nothing else is to do or a request has waited
// for the background for long.
void LocalEngine::TendBackground(bool worked) {
  const absl::Time now = common::SteadyNow();
  const bool urgent = std::any_of(live_.begin(), live_.end(), [&](const auto& live) {
    // No pass of the request has run, or it is suspended: nothing in the background works for it.
    if (live->progressed == absl::Time() || live->sequence->copy.has_value()) return false;
    const bool is_waited_for = live->phase != RequestPhase::kEnded;
    return !worked || (is_waited_for && now - live->progressed > kBackgroundPatience);
  });
  if (urgent == background_is_urgent_) return;
  background_is_urgent_ = urgent;
  executor_->parts().segments->SetUrgent(urgent);
}

void LocalEngine::UpdateStats() {
  EngineStats& counters = stats_.counters();
  const Executor::Counters done = executor_->counters();
  counters.decode_steps = done.decode_steps;
  counters.draft_model_steps = done.draft_steps;
  counters.decode_host_seconds = static_cast<double>(done.step.host_ns) * 1e-9;
  counters.decode_mask_seconds = static_cast<double>(done.step.mask_ns) * 1e-9;
  counters.decode_graphs_recorded = done.step.graphs.recorded;
  counters.decode_graphs_launched = done.step.graphs.launched;
  counters.prefix_bytes_read = done.prefill.staged_bytes;
  counters.prefix_bytes_shared = done.prefill.shared_bytes;
  counters.prefill_rows_shared = done.prefill.shared_rows;
  stats_.Update(CountRequests(live_), executor_->waited_ns());
  inbox_->Publish([this] { stats_.Publish(); });
}

}  // namespace retroinfer
