#include "gpu_worker/engine/plan_runner.h"

#include <algorithm>
#include <utility>

#include "common/clock/steady_now.h"
#include "common/log/check.h"
#include "gpu_worker/engine/request_errors.h"
#include "spdlog/spdlog.h"

namespace retroinfer {

PlanRunner::PlanRunner(Parts parts)
    : parts_(std::move(parts)),
      live_(*parts_.live),
      commands_(*parts_.commands),
      executor_(commands_.executor()),
      exchange_(*parts_.exchange),
      delivery_(*parts_.delivery),
      counters_(*parts_.counters) {
  batch_.reserve(static_cast<size_t>(executor_.sizes().max_batch));
}

LiveRequest* PlanRunner::Find(uint64_t sequence_id) {
  const auto found = std::find_if(live_.begin(), live_.end(), [sequence_id](const auto& live) {
    return live->sequence->id() == sequence_id;
  });
  return found == live_.end() ? nullptr : found->get();
}

LiveRequest* PlanRunner::FindIn(RequestPhase phase, uint64_t sequence_id) {
  LiveRequest* const live = Find(sequence_id);
  return live != nullptr && live->phase == phase ? live : nullptr;
}

PlanRunner::Requests PlanRunner::AllIn(RequestPhase phase, std::span<const uint64_t> ids) {
  Requests found;
  for (const uint64_t id : ids) {
    if (LiveRequest* const live = FindIn(phase, id); live != nullptr) found.push_back(live);
  }
  return found;
}

void PlanRunner::Send() {
  delivery_.Flush();  // before the device is waited for
  result_.Clear();
  if (command_.empty()) return;
  commands_.CarryOut(command_, result_);
  if (!result_.refused.ok()) {
    spdlog::error("a command is refused: {}", result_.refused.ToString());
    for (const uint64_t id : command_.Sequences()) {
      LiveRequest* const live = Find(id);
      if (live != nullptr) delivery_.End(*live, FinishReason::kError, result_.refused);
    }
  }
  for (const CommandResult::Failure& failure : result_.failed) {
    LiveRequest* const live = Find(failure.id);
    if (live != nullptr) delivery_.End(*live, FinishReason::kError, failure.status);
  }
  command_.Clear();
}

// --- What is planned

void PlanRunner::CarryOut(const StepPlan& plan) {
  for (const StepPlan::Ending& ending : plan.end) CarryOutEnding(ending);
  ChangeMemory(plan);
  ReadPrompts(plan);
  FinishPrompts(plan);
  RunDraftModel(plan);
  RunDecodeStep(plan);
  delivery_.Flush();
}

void PlanRunner::CarryOutEnding(const StepPlan::Ending& ending) {
  LiveRequest& live = *Find(ending.id);
  switch (ending.reason) {
    case StepPlan::EndReason::kAborted:
      return delivery_.End(live, FinishReason::kCancelled);
    case StepPlan::EndReason::kLate:
      return delivery_.End(live, FinishReason::kDeadline);
    case StepPlan::EndReason::kUnreachable:
      return delivery_.End(live, FinishReason::kRefused,
                           DeadlineUnreachableError(absl::Seconds(ending.seconds),
                                                    live.request.deadline - common::SteadyNow()));
    case StepPlan::EndReason::kFailed:
      return delivery_.End(live, FinishReason::kError, live.failure);
    case StepPlan::EndReason::kArenaFull:
      return delivery_.End(live, FinishReason::kError, live.arena_error);
  }
}

// Who gets or gives memory. If an earlier action of the plan took the memory that a later one
// needs, that request stays as it is, for the next plan.
void PlanRunner::ChangeMemory(const StepPlan& plan) {
  for (const uint64_t id : plan.let_go) LetGo(id);
  const Requests granted = AllIn(RequestPhase::kReserving, plan.grant);
  for (const LiveRequest* const live : granted) {
    const SequenceKv& kv = live->sequence->kv;
    command_.claim.push_back({.id = kv.sequence_id,
                              .extents = kv.extents,
                              .num_cached_segments = kv.num_cached_segments,
                              .cached = kv.cached});
  }
  const auto list = [](const Requests& requests, std::vector<uint64_t>& ids) {
    for (const LiveRequest* const live : requests) ids.push_back(live->sequence->id());
  };
  const auto list_blocks = [](const Requests& requests, bool in_addition,
                              std::vector<StepCommand::Blocks>& blocks) {
    for (const LiveRequest* const live : requests) {
      blocks.push_back({live->sequence->id(), in_addition ? live->Asked() : live->demand.target()});
    }
  };
  const Requests put_back = AllIn(RequestPhase::kReserving, plan.put_back);
  list(put_back, command_.put_back);
  const Requests left = AllIn(RequestPhase::kLeaving, plan.leave);
  list(left, command_.leave);
  for (const LiveRequest* const live : left) LogCopy(*live, "to", live->suspended_since);
  const Requests rejoined = AllIn(RequestPhase::kReturning, plan.rejoin);
  list(rejoined, command_.rejoin);
  for (const LiveRequest* const live : rejoined) LogCopy(*live, "from", live->resident_since);
  const Requests suspended = AllIn(RequestPhase::kDecoding, plan.suspend);
  list(suspended, command_.suspend);
  const Requests grown = AllIn(RequestPhase::kDecoding, plan.grow);
  list_blocks(grown, true, command_.grow);
  const Requests resumed = AllIn(RequestPhase::kSuspended, plan.resume);
  list_blocks(resumed, false, command_.resume);
  const Requests admitted = AllIn(RequestPhase::kWaiting, plan.admit);
  list_blocks(admitted, false, command_.admit);
  Send();
  const auto each_done = [this](const Requests& requests, const auto& done) {
    for (LiveRequest* const live : requests) {
      const bool has_memory = !result_.LacksMemory(live->sequence->id());
      if (live->phase != RequestPhase::kEnded && has_memory) done(*live);
    }
  };
  each_done(granted, [this](LiveRequest& live) { Granted(live); });
  each_done(put_back, [this](LiveRequest& live) { WasPutBack(live); });
  each_done(left, [this](LiveRequest& live) { Left(live); });
  each_done(rejoined, [this](LiveRequest& live) { Rejoined(live); });
  each_done(suspended, [this](LiveRequest& live) { Suspended(live); });
  each_done(grown, [](LiveRequest& live) { live.demand.OnGranted(); });
  each_done(resumed, [this](LiveRequest& live) { Resumed(live); });
  each_done(admitted, [this, &plan](LiveRequest& live) {
    const auto& ask = plan.ask;
    Admitted(live, std::find(ask.begin(), ask.end(), live.sequence->id()) != ask.end());
  });
}

// Frees all that the request holds.
void PlanRunner::LetGo(uint64_t id) {
  LiveRequest& live = *Find(id);
  exchange_.Release(live);
  parts_.tenants->Release(live.tenant);
  parts_.prefixes->Release(live.sequence->kv.prefix);
  command_.let_go.push_back(id);
  std::erase_if(live_, [&live](const auto& one) { return one.get() == &live; });
}

void PlanRunner::Admitted(LiveRequest& live, bool asks_store) {
  live.demand.OnGranted();
  live.answer = StoreAnswer::kNone;
  live.phase = RequestPhase::kReserving;
  if (exchange_.AskForExtents(live)) return;
  // A request that needs no extents is read without the store where there is none.
  if (!asks_store || !exchange_.AskForRows(live)) live.phase = RequestPhase::kReady;
}

void PlanRunner::Granted(LiveRequest& live) {
  const SequenceKv& kv = live.sequence->kv;
  live.phase = RequestPhase::kReady;
  live.takes_in_order = live.sequence->policy->TakesInOrder(kv);
  if (kv.reads_all()) live.prefix = 0;  // it reads nothing that others do
  counters_.prefix_cache_queries_tokens += static_cast<uint64_t>(kv.prompt_tokens);
  counters_.prefix_cache_hits_tokens += static_cast<uint64_t>(kv.cached_tokens());
}

// The arena is full: the request has given its blocks back, so that requests without extents can
// use them, and waits again.
void PlanRunner::WasPutBack(LiveRequest& live) {
  live.asked_store = false;
  live.arena_was_full = true;
  live.demand.OnReleased(0);
  live.phase = RequestPhase::kWaiting;
}

// --- Suspension: the sequence keeps its extents and its sampling state, and gives up blocks, slots
// and its row of the tables. A request that ends meanwhile waits in kEnded for the copies.

void PlanRunner::Suspended(LiveRequest& live) {
  live.phase = RequestPhase::kLeaving;
  live.suspended_since = common::SteadyNow();
  ++counters_.preemptions;
  spdlog::info("request {}: preempted after {} tokens, for the {}. time; {} blocks are copied",
               live.request.request_id, live.num_generated, live.sequence->num_suspensions,
               live.sequence->copy->host_blocks.size());
}

void PlanRunner::Resumed(LiveRequest& live) {
  live.demand.OnGranted();
  live.phase = RequestPhase::kReturning;
  live.resident_since = common::SteadyNow();
  ++counters_.resumptions;
  spdlog::info("request {}: resumed after {}", live.request.request_id,
               absl::FormatDuration(common::SteadyNow() - live.suspended_since));
}

void PlanRunner::LogCopy(const LiveRequest& live, const char* way, absl::Time begun) const {
  const double bytes = static_cast<double>(live.sequence->copy->host_blocks.size() *
                                           executor_.parts().suspended->block_bytes());
  const double seconds = absl::ToDoubleSeconds(common::SteadyNow() - begun);
  spdlog::info("request {}: {:.0f} MB copied {} the host in {:.2f} ms, {:.1f} GB/s",
               live.request.request_id, bytes * 1e-6, way, 1e3 * seconds,
               bytes / std::max(seconds, 1e-6) * 1e-9);
}

void PlanRunner::Left(LiveRequest& live) {
  live.demand.OnReleased(live.sequence->length());
  live.phase = RequestPhase::kSuspended;
}

void PlanRunner::Rejoined(LiveRequest& live) {
  live.phase = RequestPhase::kDecoding;
  live.resident_since = live.progressed = common::SteadyNow();
}

// --- Prompts

// A command ends behind a pass that may finish a group, whose first tokens are told at once.
void PlanRunner::ReadPrompts(const StepPlan& plan) {
  BeginGroups(plan);
  const uint32_t num_layers = executor_.sizes().geometry.num_model_layers();
  for (const StepPlan::Pass& pass : plan.passes) {
    command_.passes.push_back(pass);
    if (pass.layer + 1 == num_layers) RunPasses();
  }
  RunPasses();
  command_.measure = plan.measure;
  Send();
  for (const CommandResult::Measured& measured : result_.measured) {
    LiveRequest& live = *Find(measured.id);
    if (live.phase == RequestPhase::kEnded) continue;
    live.progressed = common::SteadyNow();
    delivery_.EmitPrompt(live, measured.tokens);
  }
}

void PlanRunner::BeginGroups(const StepPlan& plan) {
  std::vector<std::pair<size_t, Requests>> begun;
  for (const StepPlan::Group& group : plan.begin) {
    // A request that the plan admits and begins may have ended in Admitted().
    const Requests members = AllIn(RequestPhase::kReady, group.members);
    if (members.empty()) continue;
    StepCommand::Group& begins = command_.begin.emplace_back();
    begins.lane = group.lane;
    for (LiveRequest* const live : members) {
      begins.members.push_back(live->sequence->id());
      live->phase = RequestPhase::kReading;
      if (live->prefill_begun == absl::Time()) live->prefill_begun = common::SteadyNow();
    }
    begun.emplace_back(group.lane, members);
  }
  Send();
  for (const auto& [lane, members] : begun) {
    if (members.front()->phase == RequestPhase::kEnded) continue;  // all of them have failed
    parts_.observation->GroupBegan(lane, members);
  }
}

void PlanRunner::RunPasses() {
  Send();
  const absl::Time now = common::SteadyNow();
  for (const CommandResult::Progress& progress : result_.progress) {
    LiveRequest& live = *Find(progress.id);
    if (live.phase == RequestPhase::kEnded) continue;
    live.progressed = now;
    // The sink is computed again for each later part of a prompt: it is not counted again.
    const int64_t more = std::max<int64_t>(0, progress.processed_tokens - live.prompt_tokens_done);
    counters_.prompt_tokens += static_cast<uint64_t>(more);
    live.prompt_tokens_done += more;
    delivery_.ReportProgress(live, progress.processed_tokens);
  }
  if (result_.read.empty()) return;
  TakeReadParts();
  TakeFirstTokens();
}

void PlanRunner::TakeReadParts() {
  for (const CommandResult::Read& read : result_.read) {
    if (read.end == CommandResult::Read::End::kPrompt) continue;
    LiveRequest& live = *Find(read.id);
    if (read.end == CommandResult::Read::End::kPartInOrder) {
      live.phase = RequestPhase::kReady;
      exchange_.Save(live, read.num_tokens);
    } else {
      live.phase = RequestPhase::kSettling;
      live.head_is_read = read.end == CommandResult::Read::End::kHead;
    }
  }
}

void PlanRunner::NoteFirst(LiveRequest& live, absl::Time now) {
  live.first_token = live.last_token = now;
  parts_.inbox->PromptRead(live.request.request_id);
}

void PlanRunner::TakeFirstTokens() {
  const absl::Time now = common::SteadyNow();
  Requests requests;
  for (CommandResult::Read& read : result_.read) {
    if (read.end != CommandResult::Read::End::kPrompt) continue;
    LiveRequest& live = *requests.emplace_back(Find(read.id));
    live.phase = RequestPhase::kSettling;
    NoteFirst(live, now);
    live.first = std::move(read.first);
    if (live.forced.has_value()) live.forced->SetFirsts(std::move(read.measured));
  }
  if (requests.empty()) return;
  parts_.publish();  // a client that sees a first token sees a request that runs
  for (LiveRequest* const live : requests) delivery_.EmitFirst(*live);
}

void PlanRunner::FinishPrompts(const StepPlan& plan) {
  const Requests settled = AllIn(RequestPhase::kSettling, plan.finish);
  for (const LiveRequest* const live : settled) command_.finish.push_back(live->sequence->id());
  Send();
  for (LiveRequest* const live : settled) {
    if (live->phase != RequestPhase::kEnded && !live->has_first_token() && !live->head_is_read) {
      live->phase = RequestPhase::kReady;  // for the next part
    }
  }
  for (const uint64_t id : result_.finished) Finished(*Find(id));
}

// The background has finished all of the prompt: the request decodes from now on.
void PlanRunner::Finished(LiveRequest& live) {
  live.phase = RequestPhase::kDecoding;
  live.resident_since = common::SteadyNow();
  // The prompt does not need the rows that it has read again, unless the request holds extents:
  // then the rows are released with the extents. The store evicts what was released first, and a
  // later turn of the conversation needs both.
  if (!live.asked_store) exchange_.ReleaseRows(live);
  const int64_t prompt_tokens = live.sequence->kv.prompt_tokens;
  const int64_t whole_blocks = (prompt_tokens - kSinkTokens) / kDenseBlockTokens;
  exchange_.Save(live, kSinkTokens + whole_blocks * kDenseBlockTokens);
}

// --- Decode steps

// Without its guesses everything goes on as before, a token a step.
void PlanRunner::DraftModelFailed(const absl::Status& status) {
  spdlog::error("the draft model is given up: {}", status.ToString());
  executor_.DropDraftModel();
}

void PlanRunner::RunDraftModel(const StepPlan& plan) {
  if (executor_.parts().draft_model == nullptr) return;
  std::vector<DraftModel::Ask> asks;
  Requests requests;
  for (const StepPlan::Draft& draft : plan.drafts) {
    LiveRequest* const live = FindIn(RequestPhase::kDecoding, draft.id);
    if (live == nullptr) continue;
    asks.push_back({.text = DraftedTextOf(*live), .count = draft.count});
    requests.push_back(live);
  }
  if (!asks.empty()) {
    absl::StatusOr<std::vector<std::vector<int32_t>>> drafts = executor_.Draft(asks);
    if (!drafts.ok()) return DraftModelFailed(drafts.status());
    for (size_t i = 0; i < requests.size(); ++i) {
      requests[i]->drafting->model()->Take(std::move((*drafts)[i]));
    }
  }
  for (const StepPlan::DraftRead& read : plan.draft_reads) {
    const LiveRequest* const live = FindIn(RequestPhase::kDecoding, read.id);
    if (live == nullptr) continue;
    const absl::Status status = executor_.ReadForDrafts(DraftedTextOf(*live), read.rows);
    if (!status.ok()) return DraftModelFailed(status);
  }
}

bool PlanRunner::LacksDraft(LiveRequest& live, const StepPlan& plan) const {
  if (plan.drafts.empty() || live.forced.has_value()) return false;
  const auto ahead = std::ranges::count(batch_, &live);
  return ahead > 0 && ahead > std::ssize(live.drafting->tried());
}

void PlanRunner::RunDecodeStep(const StepPlan& plan) {
  batch_.clear();
  for (const uint64_t id : plan.decode) {
    LiveRequest* const live = FindIn(RequestPhase::kDecoding, id);
    if (live == nullptr || live->demand.FreeTokens(live->sequence->length()) <= 0) continue;
    if (LacksDraft(*live, plan)) continue;
    batch_.push_back(live);
  }
  if (batch_.empty()) return;
  // A step has the rows of one policy, and of one sequence, as neighbours.
  std::sort(batch_.begin(), batch_.end(), [](const LiveRequest* a, const LiveRequest* b) {
    return std::pair(a->sequence->kv.settings.policy, a->sequence->id()) <
           std::pair(b->sequence->kv.settings.policy, b->sequence->id());
  });
  int64_t ahead = 0;
  for (size_t i = 0; i < batch_.size(); ++i) {
    ahead = i > 0 && batch_[i - 1] == batch_[i] ? ahead + 1 : 0;
    command_.rows.push_back(RowOf(*batch_[i], ahead));
  }
  Send();
  if (!result_.step.ok()) {
    spdlog::error("decode step {}: {}", executor_.counters().decode_steps, result_.step.ToString());
    for (LiveRequest* const live : batch_) delivery_.End(*live, FinishReason::kError, result_.step);
  }
  const size_t num_rows = result_.rows.size();  // none, where the step has failed
  const absl::Time now = common::SteadyNow();
  grown_.clear();
  const LiveRequest* before = nullptr;
  for (size_t i = 0; i < num_rows; ++i) {
    const bool is_first = std::exchange(before, batch_[i]) != batch_[i];
    TakeRow(*batch_[i], result_.rows[i], !is_first, now);
  }
  if (!grown_.empty()) GiveBack(grown_);
}

StepCommand::Row PlanRunner::RowOf(const LiveRequest& live, int64_t ahead) {
  StepCommand::Row row{.id = live.sequence->id(),
                       .token = live.next_token,
                       .position = live.sequence->kv.num_tokens + ahead};
  if (live.sequence->kv.given_left() > 0) {
    row.token = live.sequence->kv.GivenAt(ahead);
  } else if (live.forced.has_value()) {
    row.token = live.forced->Fed(ahead);
    row.target = live.forced->Told(ahead);
  } else if (ahead > 0) {
    RI_CHECK(live.drafting.has_value() && ahead <= std::ssize(live.drafting->tried()));
    row.token = live.drafting->tried()[static_cast<size_t>(ahead) - 1];
  }
  return row;
}

void PlanRunner::TakeRow(LiveRequest& live, const CommandResult::Row& row, bool is_more,
                         absl::Time now) {
  if (row.is_unread) return;  // it is fed again when its pages are there
  if (row.is_given) return TakeGiven(live, now);
  if (is_more && !live.forced.has_value() && live.has_first_token()) {
    const bool is_accepted = !row.is_rejected && live.phase == RequestPhase::kDecoding;
    ++(is_accepted ? live.drafts_accepted : live.drafts_rejected);
    ++(is_accepted ? counters_.drafts_accepted : counters_.drafts_rejected);
    const auto source = static_cast<size_t>(live.drafting->source());
    ++(is_accepted ? counters_.accepted_by_source : counters_.rejected_by_source)[source];
  }
  if (row.is_rejected) return;
  live.kv_bytes_read += row.bytes.read;
  live.kv_bytes_full += row.bytes.full;
  live.unseen.Add(row.unseen);
  TakeToken(live, row.drawn, now);
}

void PlanRunner::TakeGiven(LiveRequest& live, absl::Time now) {
  if (live.phase != RequestPhase::kDecoding) return;
  live.progressed = now;
  ++counters_.prompt_tokens;
  ++live.prompt_tokens_done;
  delivery_.ReportProgress(live, live.sequence->kv.num_tokens);  // once a step
  if (live.demand.OnGrown(live.sequence->length())) grown_.push_back(&live);
}

void PlanRunner::TakeToken(LiveRequest& live, const DrawnToken& token, absl::Time now) {
  if (live.phase != RequestPhase::kDecoding) return;  // an earlier row has ended it
  if (!live.has_first_token()) {
    NoteFirst(live, now);
    ++counters_.prompt_tokens;
    delivery_.ReportProgress(live, live.sequence->kv.num_tokens);
    parts_.publish();  // a client that sees a first token sees a request that runs
  }
  live.last_token = live.progressed = now;
  delivery_.Emit(live, token);
  if (live.phase != RequestPhase::kDecoding) return;
  if (live.demand.OnGrown(live.sequence->length())) grown_.push_back(&live);
}

// Gives blocks back that the requests will not need any more: what they hold may then be all that
// they would ask for.
void PlanRunner::GiveBack(std::span<LiveRequest* const> grown) {
  const LiveRequest* before = nullptr;
  for (const LiveRequest* const live : grown) {
    const int32_t most = live->demand.peak().dense;
    const bool is_new = std::exchange(before, live) != live;  // rows of one are neighbours
    if (is_new && live->phase == RequestPhase::kDecoding && most < live->Held().dense) {
      command_.give_back.push_back({live->sequence->id(), {.dense = most}});
    }
  }
  Send();
  for (LiveRequest* const live : grown) {
    if (live->Asked() == KvBlocks()) live->demand.OnGranted();
  }
}

}  // namespace retroinfer
