// Invariants of the loop:
// * A request is in exactly one place of `live_` from Submit's mail to the release of its last
//   block.
// * Only kDecoding requests take part in steps; a request leaves a step's batch by changing state.
// * OnFinish is called in End() and nowhere else; End() makes the state kEnding, so it runs once.
// * Blocks return to the pools, and extents to the store, in PollEnding() only, once the policy
//   says that neither the background nor the device uses them any more.
#include "gpu_worker/engine/local_engine.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/engine/sampling_validation.h"
#include "gpu_worker/engine/segment_claim.h"
#include "spdlog/spdlog.h"

namespace retroinfer {
namespace {

constexpr absl::Duration kIdleWait = absl::Milliseconds(20);
constexpr absl::Duration kBlockedWait = absl::Microseconds(200);

}  // namespace

LocalEngine::LocalEngine(const LocalEngineOptions& options, EngineParts parts)
    : options_(options),
      parts_(std::move(parts)),
      inbox_(std::make_shared<Inbox>(options.max_live_requests)),
      stats_({.device = parts_.device,
              .memory = parts_.memory.get(),
              .cache = parts_.cache.get(),
              .store = parts_.store,
              .builder = &parts_.wave->builder()}) {
  const MemoryPlan& plan = options.plan;
  limits_ = {.max_model_len = plan.OfRequests(plan.max_model_len),
             .kv_capacity_tokens_full = plan.OfRequests(plan.full_capacity_tokens),
             .kv_capacity_tokens_wave = plan.OfRequests(plan.wave_capacity_tokens),
             .max_batch = plan.max_batch};
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
  ASSIGN_OR_RETURN(sampler_, Sampler::Create(*parts_.device, *parts_.ops, *parts_.stream,
                                             plan.max_batch, parts_.model->config().vocab_size));
  ASSIGN_OR_RETURN(decode_step_, DecodeStep::Create(*parts_.device, *parts_.stream, *parts_.model,
                                                    *sampler_, plan.max_batch));
  for (const int64_t max_tokens : {plan.OfRequests(plan.max_model_len), plan.short_lane_tokens}) {
    ASSIGN_OR_RETURN(auto lane,
                     PrefillLane::Create({.device = parts_.device,
                                          .ops = parts_.ops,
                                          .stream = parts_.stream,
                                          .model = parts_.model,
                                          .arena = parts_.cache->device_arena()},
                                         plan.geometry, max_tokens, options_.prefill_rows));
    lanes_.push_back(std::move(lane));
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
  // Hashing a long prompt takes milliseconds: on the caller's thread.
  NamedPrefix prefix;
  if (options_.share_segments) {
    prefix = NamePrefix(request.prompt, parts_.wave->settings().dense_below,
                        options_.segment_fingerprint, request.cache_salt);
  }
  return inbox_->Submit({std::move(request), std::move(sink), absl::Now(), std::move(prefix)});
}

bool LocalEngine::Abort(std::string_view request_id) { return inbox_->Abort(request_id); }

void LocalEngine::Drain(absl::Time deadline) {
  inbox_->Close();
  while (inbox_->AnyLive()) {
    if (absl::Now() >= deadline) {
      cancel_all_ = true;
      inbox_->Wake();
    }
    absl::SleepFor(absl::Milliseconds(5));
  }
}

void LocalEngine::Loop() {
  absl::Duration wait = kIdleWait;
  while (true) {
    TakeMail(wait);
    stats_.BeginRound();
    const bool worked = RunOnce();
    UpdateStats();
    if (options_.on_progress) options_.on_progress();
    if (stopping_ && live_.empty()) return;
    wait = worked ? absl::ZeroDuration() : (live_.empty() ? kIdleWait : kBlockedWait);
  }
}

bool LocalEngine::RunOnce() {
  if (const absl::Status status = parts_.cache->Tend(); !status.ok()) {
    if (const auto suppressed = cache_log_.Admit(absl::Now()); suppressed.has_value()) {
      spdlog::error("block cache: {} ({} times since)", status.ToString(), *suppressed + 1);
    }
  }
  EndLateRequests();
  Admit();
  bool worked = RunPrefillSlice();
  worked |= PollIndexing();
  worked |= RunDecodeStep();
  worked |= PollEnding();
  return worked;
}

// --- Mail

void LocalEngine::TakeMail(absl::Duration timeout) {
  Mail mail = inbox_->Take(timeout);
  for (Submission& submission : mail.submissions) TakeSubmission(std::move(submission));
  for (ReserveAnswer& answer : mail.answers) TakeAnswer(std::move(answer));
  for (const std::string& id : mail.aborts) {
    for (const auto& live : live_) {
      if (live->state != RequestState::kEnding && live->request.request_id == id) {
        End(*live, FinishReason::kCancelled);
      }
    }
  }
}

void LocalEngine::TakeSubmission(Submission submission) {
  auto live = std::make_unique<LiveRequest>();
  live->request = std::move(submission.request);
  live->sink = std::move(submission.sink);
  live->submitted = submission.submitted;
  live->policy = &PolicyOf(live->request.attention);
  live->kv.sequence_id = next_sequence_id_++;
  live->kv.settings = live->request.attention;
  live->kv.prompt_tokens = static_cast<int64_t>(live->request.prompt.size());
  live->kv.total_tokens = live->kv.prompt_tokens + live->request.sampling.max_tokens;
  live->kv.prompt = live->request.prompt;
  live->kv.prefix = std::move(submission.prefix);
  live->output = std::make_unique<OutputProcessor>(*parts_.tokenizer, live->request.sampling,
                                                   options_.eos_token_ids);
  live_.push_back(std::move(live));
}

void LocalEngine::TakeAnswer(ReserveAnswer answer) {
  LiveRequest* live = Find(answer.sequence_id);
  if (live == nullptr || live->state != RequestState::kReserving) return;
  if (answer.extents.ok() || live->only_restores) {
    // What only looked for segments does without them.
    BeginPrefill(*live, std::move(answer.extents).value_or(std::vector<Extent>()));
    return;
  }
  if (!absl::IsResourceExhausted(answer.extents.status())) {
    End(*live, FinishReason::kError, answer.extents.status());
    return;
  }
  // The arena is full now. It will not be for ever: the request fits (CheckFits) and others end.
  // Should nobody else have held extents since it was asked, its free space is too fragmented.
  ++stats_.counters().allocation_failures;
  const bool others = std::any_of(live_.begin(), live_.end(), [live](const auto& other) {
    return other.get() != live && other->asked_store;
  });
  if (!others && live->releases_when_asked == num_releases_) {
    End(*live, FinishReason::kError, answer.extents.status());
    return;
  }
  live->asked_store = false;
  live->arena_was_full = true;
  parts_.memory->Free(live->kv);
  live->state = RequestState::kWaiting;
}

void LocalEngine::BeginPrefill(LiveRequest& live, std::vector<Extent> extents) {
  if (const absl::Status status =
          TakeExtents(std::move(extents), parts_.store->arena_pages(), live.kv);
      !status.ok()) {
    End(live, FinishReason::kError, status);
    return;
  }
  live.state = RequestState::kPrefill;
  EngineStats& counters = stats_.counters();
  counters.prefix_cache_queries_tokens += static_cast<uint64_t>(live.kv.prompt_tokens);
  counters.prefix_cache_hits_tokens += static_cast<uint64_t>(live.kv.cached_tokens());
}

LiveRequest* LocalEngine::Find(uint64_t sequence_id) {
  const auto found = std::find_if(live_.begin(), live_.end(), [sequence_id](const auto& live) {
    return live->kv.sequence_id == sequence_id;
  });
  return found == live_.end() ? nullptr : found->get();
}

// --- Admission

AttentionPolicy& LocalEngine::PolicyOf(const AttentionSettings& settings) const {
  return settings.policy == PolicyKind::kFull ? *parts_.full_requests : *parts_.wave_requests;
}

absl::Status LocalEngine::CheckFits(const GenerationRequest& request) const {
  const int64_t prompt = static_cast<int64_t>(request.prompt.size());
  const int64_t total = prompt + request.sampling.max_tokens;
  const KvNeed need = PolicyOf(request.attention).Need(prompt, total);
  uint64_t pages = 0;
  for (const uint32_t tokens : need.segment_tokens) {
    pages += SegmentLayout(options_.plan.geometry, tokens).max_pages;
  }
  if (parts_.memory->CouldFit(need) && pages <= parts_.store->arena_pages()) {
    return absl::OkStatus();
  }
  const bool is_full = request.attention.policy == PolicyKind::kFull;
  const int64_t capacity =
      is_full ? limits_.kv_capacity_tokens_full : limits_.kv_capacity_tokens_wave;
  return absl::ResourceExhaustedError(
      absl::StrCat("prompt of ", prompt, " tokens and max_tokens ", request.sampling.max_tokens,
                   " need ", total, " tokens of KV; this server can hold ", capacity,
                   " with policy ", std::string(PolicyName(request.attention.policy)),
                   ". Use a shorter prompt, fewer max_tokens", is_full ? ", or policy wave" : ""));
}

void LocalEngine::EndLateRequests() {
  const absl::Time now = absl::Now();
  for (const auto& live : live_) {
    if (cancel_all_) {
      End(*live, FinishReason::kCancelled);
    } else if (now >= live->request.deadline) {
      End(*live, FinishReason::kDeadline);
    }
  }
}

void LocalEngine::Admit() {
  const auto admitted = std::count_if(live_.begin(), live_.end(), [](const auto& live) {
    return live->state != RequestState::kWaiting && live->state != RequestState::kEnding;
  });
  for (auto count = admitted; count < options_.plan.max_batch; ++count) {
    LiveRequest* first = nullptr;
    for (const auto& live : live_) {
      if (live->state == RequestState::kWaiting &&
          (first == nullptr || live->request.priority < first->request.priority)) {
        first = live.get();
      }
    }
    // Strictly in order: a large request at the head is not starved by small ones behind it.
    if (first == nullptr || !TryReserve(*first)) return;
  }
}

bool LocalEngine::TryReserve(LiveRequest& live) {
  if (live.arena_was_full && live.releases_when_asked == num_releases_) return false;
  const KvNeed need = live.policy->Need(live.kv.prompt_tokens, live.kv.total_tokens);
  if (!parts_.memory->Reserve(need, live.kv)) return false;
  auto sampling = SamplingState::Create(*parts_.device, *parts_.stream, live.request,
                                        options_.eos_token_ids, parts_.model->config().vocab_size);
  if (!sampling.ok()) {
    End(live, FinishReason::kError, sampling.status());
    return true;
  }
  live.sampling = *std::move(sampling);
  AskStore(live, need);
  return true;
}

void LocalEngine::AskStore(LiveRequest& live, const KvNeed& need) {
  std::optional<ReserveRequest> request = ClaimSegments(live.kv, need);
  live.only_restores = request.has_value() && request->cached_only;
  // Without a store, what needs no extents does not wait for it.
  if (!request.has_value() || (live.only_restores && !parts_.store->attached())) {
    live.state = RequestState::kPrefill;
    return;
  }
  live.state = RequestState::kReserving;
  live.asked_store = true;
  live.releases_when_asked = num_releases_;
  const uint64_t id = live.kv.sequence_id;
  parts_.store->Reserve(*std::move(request),
                        [inbox = inbox_, id](absl::StatusOr<std::vector<Extent>> extents) {
                          inbox->Answer({id, std::move(extents)});
                        });
}

// --- Prefill

void LocalEngine::AssignLanes() {
  for (const auto& live : live_) {
    if (live->state != RequestState::kPrefill || live->prefill_begun != absl::Time()) continue;
    // The shortest lane that holds the prompt; a short prompt also takes the long lane.
    for (auto lane = lanes_.rbegin(); lane != lanes_.rend(); ++lane) {
      if ((*lane)->busy() || live->kv.prompt_tokens > (*lane)->max_tokens()) continue;
      live->prefill_begun = absl::Now();
      (*lane)->Begin(live->request.prompt, live->kv, *live->policy);
      break;
    }
  }
}

bool LocalEngine::RunPrefillSlice() {
  AssignLanes();
  for (size_t i = 0; i < lanes_.size(); ++i) {
    PrefillLane& lane = *lanes_[(next_lane_ + i) % lanes_.size()];
    if (lane.busy() && RunLane(lane)) {
      next_lane_ = (next_lane_ + i + 1) % lanes_.size();
      return true;
    }
  }
  return false;
}

bool LocalEngine::RunLane(PrefillLane& lane) {
  LiveRequest& live = *Find(lane.sequence()->sequence_id);
  if (live.state != RequestState::kPrefill) return false;  // waits for its background work
  const bool decoding = std::any_of(live_.begin(), live_.end(), [](const auto& other) {
    return other->state == RequestState::kDecoding;
  });
  const int64_t rows = decoding ? options_.prefill_rows_beside_decode : options_.prefill_rows;
  const absl::StatusOr<PrefillLane::Outcome> outcome = lane.RunSlice(rows, sampler_->logits(1));
  if (!outcome.ok()) {
    End(live, FinishReason::kError, outcome.status());
    return true;
  }
  if (*outcome == PrefillLane::Outcome::kBlocked) return false;
  ReportProgress(live, lane);
  if (*outcome == PrefillLane::Outcome::kWorked) return true;

  SamplingState* const state = &*live.sampling;
  const auto token = sampler_->Sample(std::span(&state, 1));
  if (!token.ok()) {
    End(live, FinishReason::kError, token.status());
    return true;
  }
  stats_.counters().prompt_tokens += live.request.prompt.size();
  live.state = RequestState::kIndexing;
  live.first_token = live.last_token = absl::Now();
  Emit(live, token->front());
  return true;
}

void LocalEngine::ReportProgress(LiveRequest& live, const PrefillLane& lane) {
  if (!live.request.return_progress) return;
  live.sink->OnProgress({.total_tokens = static_cast<int64_t>(live.request.prompt.size()),
                         .cached_tokens = live.kv.cached_tokens(),
                         .processed_tokens = lane.processed_tokens(),
                         .elapsed = absl::Now() - live.prefill_begun});
}

bool LocalEngine::PollIndexing() {
  bool changed = false;
  for (const auto& live : live_) {
    if (live->state != RequestState::kIndexing) continue;
    const absl::StatusOr<bool> done = live->policy->FinishPrefill(live->kv);
    if (!done.ok()) {
      End(*live, FinishReason::kError, done.status());
    } else if (*done) {
      for (const auto& lane : lanes_) {
        if (lane->sequence() == &live->kv) lane->End();
      }
      live->state = RequestState::kDecoding;
      if (live->only_restores && live->asked_store) {
        parts_.store->Release(live->kv.sequence_id);
        ++num_releases_;
        live->asked_store = false;
      }
    }
    changed |= !done.ok() || *done;
  }
  return changed;
}

// --- Decode

bool LocalEngine::RunDecodeStep() {
  batch_.clear();
  for (const auto& live : live_) {
    if (live->state == RequestState::kDecoding) batch_.push_back(live.get());
  }
  if (batch_.empty()) return false;
  const absl::StatusOr<std::span<const OutputToken>> tokens = decode_step_->Run(std::span(batch_));
  EngineStats& counters = stats_.counters();
  ++counters.decode_steps;
  const DecodeStep::Counters step = decode_step_->counters();
  counters.decode_host_seconds = static_cast<double>(step.host_ns) * 1e-9;
  counters.decode_graphs_recorded = step.graphs.recorded;
  counters.decode_graphs_launched = step.graphs.launched;
  if (!tokens.ok()) {
    spdlog::error("decode step {}: {}", stats_.counters().decode_steps, tokens.status().ToString());
    for (LiveRequest* live : batch_) End(*live, FinishReason::kError, tokens.status());
    return true;
  }
  const absl::Time now = absl::Now();
  for (size_t i = 0; i < batch_.size(); ++i) {
    batch_[i]->last_token = now;
    Emit(*batch_[i], (*tokens)[i]);
  }
  return true;
}

void LocalEngine::Emit(LiveRequest& live, const OutputToken& token) {
  if (parts_.store->memory_taken()) {
    End(live, FinishReason::kError,
        absl::UnavailableError("another worker has taken the memory of this one; try again"));
    return;
  }
  ++live.num_generated;
  ++stats_.counters().generation_tokens;
  live.next_token = token.token;
  live.sampling->Count(token.token);
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

void LocalEngine::End(LiveRequest& live, FinishReason reason, absl::Status status) {
  if (live.state == RequestState::kEnding) return;
  live.output->Flush();
  if (OutputDelta delta = live.output->TakeDelta(); !delta.tokens.empty() || !delta.text.empty()) {
    live.sink->OnOutput(delta);
  }
  const GenerationResult result = ResultOf(live, reason, std::move(status));
  live.state = RequestState::kEnding;
  // First free the id and only then tell the client, who may use it again at once.
  inbox_->Forget(live.request.request_id);
  live.sink->OnFinish(result);
  live.sink.reset();
}

bool LocalEngine::PollEnding() {
  bool changed = false;
  for (auto it = live_.begin(); it != live_.end();) {
    LiveRequest& live = **it;
    if (live.state != RequestState::kEnding) {
      ++it;
      continue;
    }
    if (live.kv.table_row >= 0) {
      const absl::StatusOr<bool> released = live.policy->Release(live.kv);
      if (!released.ok()) {
        spdlog::error("release of sequence {}: {}", live.kv.sequence_id,
                      released.status().ToString());
      } else if (!*released) {
        ++it;
        continue;
      }
    }
    for (const auto& lane : lanes_) {
      if (lane->sequence() == &live.kv) lane->End();
    }
    if (live.asked_store) {
      parts_.store->Release(live.kv.sequence_id);
      ++num_releases_;
    }
    parts_.memory->Free(live.kv);
    it = live_.erase(it);
    changed = true;
  }
  return changed;
}

void LocalEngine::UpdateStats() {
  int64_t running = 0, waiting = 0;
  for (const auto& live : live_) {
    if (live->state == RequestState::kWaiting || live->state == RequestState::kReserving) {
      ++waiting;
    } else if (live->state != RequestState::kEnding) {
      ++running;
    }
  }
  stats_.Update(running, waiting, sampler_->waited_ns());
}

}  // namespace retroinfer
