#include "gpu_worker/executor/command_checker.h"

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/executor/held_needs.h"
#include "gpu_worker/kv/extent_check.h"

namespace retroinfer {
namespace {

// Blocks are looked at again each so many tokens.
constexpr int64_t kReachAhead = 64;

absl::Status Refuse(uint64_t id, const std::string& what) {
  return absl::FailedPreconditionError(absl::StrCat("sequence ", id, ": ", what));
}

}  // namespace

CommandChecker::CommandChecker(Executor& executor, const BlockCopier& copier,
                               const HeldSequences& held)
    : executor_(executor),
      copier_(copier),
      held_(held),
      vocab_size_(executor.parts().model->config().vocab_size),
      arena_pages_(static_cast<uint32_t>(executor.parts().cache->device_arena().size() /
                                         executor.sizes().geometry.page_bytes())) {}

absl::StatusOr<HeldSequence*> CommandChecker::Find(uint64_t id) const {
  const auto found = held_.find(id);
  if (found == held_.end()) return Refuse(id, "it is not known");
  return found->second.get();
}

absl::StatusOr<HeldSequence*> CommandChecker::FindIn(Stage stage, uint64_t id) const {
  ASSIGN_OR_RETURN(HeldSequence* const held, Find(id));
  if (held->is_dropped) return Refuse(id, "it was dropped");
  if (held->stage != stage) {
    return Refuse(id, absl::StrCat("it is in stage ", static_cast<int>(held->stage), ", not ",
                                   static_cast<int>(stage)));
  }
  return held;
}

absl::Status CommandChecker::TakeOnce(uint64_t id) {
  if (std::find(taken_.begin(), taken_.end(), id) != taken_.end()) {
    return Refuse(id, "the command names it in two lists");
  }
  taken_.push_back(id);
  return absl::OkStatus();
}

absl::Status CommandChecker::Check(const StepCommand& command) {
  taken_.clear();
  for (size_t i = 0; i < command.open.size(); ++i) {
    RETURN_IF_ERROR(CheckOpen(command.open[i]));
    for (size_t j = 0; j < i; ++j) {
      if (command.open[j].id == command.open[i].id) {
        return Refuse(command.open[i].id, "it is opened twice");
      }
    }
  }
  RETURN_IF_ERROR(CheckEnds(command));
  RETURN_IF_ERROR(CheckMemory(command));
  RETURN_IF_ERROR(CheckLanes(command));
  for (const uint64_t id : command.finish) {
    RETURN_IF_ERROR(CheckFinish(id));
    RETURN_IF_ERROR(TakeOnce(id));
  }
  RETURN_IF_ERROR(CheckSaves(command));
  return CheckRows(command);
}

// What follows from the values alone is the decoder's affair.
absl::Status CommandChecker::CheckOpen(const StepCommand::Open& open) const {
  if (held_.contains(open.id)) return Refuse(open.id, "it is known already");
  const auto prompt_tokens = std::ssize(open.prompt);
  const int64_t longest = executor_.memory().sizes().max_model_len;
  if (prompt_tokens < 1 || open.total_tokens < prompt_tokens || open.total_tokens > longest) {
    return Refuse(open.id, absl::StrCat("a prompt of ", prompt_tokens, " tokens of ",
                                        open.total_tokens, " of at most ", longest));
  }
  if (open.given_tokens == 0) return absl::OkStatus();
  const bool draws =
      !open.is_prompt_only && open.num_prompt_logprobs < 0 && open.first_targets.empty();
  if (draws && open.given_tokens > 0 && open.given_tokens < prompt_tokens) return absl::OkStatus();
  return Refuse(open.id, absl::StrCat(open.given_tokens, " given tokens of a prompt of ",
                                      prompt_tokens, ", which has to draw"));
}

absl::Status CommandChecker::CheckStage(Stage stage, std::span<const uint64_t> ids) {
  for (const uint64_t id : ids) {
    RETURN_IF_ERROR(FindIn(stage, id).status());
    RETURN_IF_ERROR(TakeOnce(id));
  }
  return absl::OkStatus();
}

absl::Status CommandChecker::CheckEnds(const StepCommand& command) {
  for (const uint64_t id : command.drop) RETURN_IF_ERROR(Find(id).status());
  for (const uint64_t id : command.let_go) {
    ASSIGN_OR_RETURN(const HeldSequence* const held, Find(id));
    if (!held->is_dropped) return Refuse(id, "it is let go without having been dropped");
    if (copier_.IsCopying(id)) return Refuse(id, "its blocks are being saved");
    RETURN_IF_ERROR(TakeOnce(id));
  }
  return absl::OkStatus();
}

// --- Memory

absl::Status CommandChecker::CheckMemory(const StepCommand& command) {
  for (const StepCommand::Claim& claim : command.claim) {
    RETURN_IF_ERROR(FindIn(Stage::kAdmitted, claim.id).status());
    RETURN_IF_ERROR(TakeOnce(claim.id));
  }
  RETURN_IF_ERROR(CheckStage(Stage::kAdmitted, command.put_back));
  RETURN_IF_ERROR(CheckStage(Stage::kLeaving, command.leave));
  RETURN_IF_ERROR(CheckStage(Stage::kReturning, command.rejoin));
  for (const uint64_t id : command.rewind) {
    ASSIGN_OR_RETURN(const HeldSequence* const held, FindIn(Stage::kDecoding, id));
    const SequenceKv& kv = held->sequence.kv;
    if (!held->sequence.policy->CanRewind(kv.settings, kv.prompt_tokens, kv.num_tokens)) {
      return Refuse(id, "its tokens have replaced others");
    }
    RETURN_IF_ERROR(TakeOnce(id));
  }
  for (const StepCommand::Blocks& kept : command.give_back) RETURN_IF_ERROR(CheckGiveBack(kept));
  for (const StepCommand::Lengthening& more : command.lengthen) {
    RETURN_IF_ERROR(FindIn(Stage::kDecoding, more.id).status());
    RETURN_IF_ERROR(TakeOnce(more.id));
  }
  for (const uint64_t id : command.suspend) RETURN_IF_ERROR(CheckSuspend(id));
  for (const auto& wanted : command.grow) {
    RETURN_IF_ERROR(CheckBlocks(Stage::kDecoding, wanted));
  }
  for (const auto& wanted : command.resume) {
    RETURN_IF_ERROR(CheckBlocks(Stage::kSuspended, wanted));
  }
  for (const auto& wanted : command.admit) {
    RETURN_IF_ERROR(CheckBlocks(Stage::kOpen, wanted));
  }
  return absl::OkStatus();
}

absl::Status CommandChecker::CheckBlocks(Stage stage, const StepCommand::Blocks& wanted) {
  ASSIGN_OR_RETURN(const HeldSequence* const held, FindIn(stage, wanted.id));
  RETURN_IF_ERROR(TakeOnce(wanted.id));
  const SequenceKv& kv = held->sequence.kv;
  const KvNeed most = NeedOf(*held, kv.total_tokens);
  // In 64 bits: the sum of two counts that another process has sent.
  const KvBlocks has = Held(kv);
  const int64_t dense = int64_t{has.dense} + wanted.blocks.dense;
  const int64_t meta = int64_t{has.meta} + wanted.blocks.meta;
  const bool is_possible = wanted.blocks.dense >= 0 && wanted.blocks.meta >= 0 &&
                           dense <= most.dense_blocks && meta <= most.meta_blocks;
  const int64_t length = std::max(kv.num_tokens, kv.prompt_tokens);
  const bool is_enough =
      stage == Stage::kDecoding || Suffices(wanted.blocks, BlocksFor(*held, length, length));
  const bool holds_copy = stage != Stage::kSuspended || dense >= SuspendedKv::DenseBlocksOf(kv);
  if (is_possible && is_enough && holds_copy) return absl::OkStatus();
  return Refuse(wanted.id,
                absl::StrCat("of ", length, " tokens cannot have ", dense, " and ", meta,
                             " blocks of ", most.dense_blocks, " and ", most.meta_blocks));
}

absl::Status CommandChecker::CheckGiveBack(const StepCommand::Blocks& kept) {
  ASSIGN_OR_RETURN(const HeldSequence* const held, FindIn(Stage::kDecoding, kept.id));
  RETURN_IF_ERROR(TakeOnce(kept.id));
  if (kept.blocks.dense >= SuspendedKv::DenseBlocksOf(held->sequence.kv)) return absl::OkStatus();
  return Refuse(kept.id, absl::StrCat("its tokens take more than ", kept.blocks.dense, " blocks"));
}

absl::Status CommandChecker::CheckSuspend(uint64_t id) {
  if (executor_.parts().suspended == nullptr) return Refuse(id, "nothing is suspended here");
  RETURN_IF_ERROR(FindIn(Stage::kDecoding, id).status());
  if (copier_.IsCopying(id)) return Refuse(id, "its blocks are being saved");
  return TakeOnce(id);
}

// Extents lie in the arena, and each can hold what it is used for.
absl::Status CommandChecker::CheckClaim(const HeldSequence& held,
                                        const StepCommand::Claim& claim) const {
  const KvGeometry geometry = executor_.memory().sizes().arena_geometry();
  const std::vector<uint32_t> segments = NeedOf(held, held.sequence.kv.total_tokens).segment_tokens;
  const size_t num_cached = claim.num_cached_segments;
  if (claim.extents.size() != segments.size() || num_cached > segments.size() ||
      num_cached > claim.cached.size()) {
    return absl::InternalError(absl::StrCat(claim.extents.size(), " extents, ", num_cached,
                                            " of them cached, for ", segments.size(), " segments"));
  }
  for (size_t i = 0; i < segments.size(); ++i) {
    const Extent& extent = claim.extents[i];
    RETURN_IF_ERROR(CheckInside(extent, arena_pages_));
    if (i >= num_cached) {
      RETURN_IF_ERROR(CheckTakes(extent, segments[i], geometry));
    } else if (extent.num_tokens != segments[i] || claim.cached[i].extent.id != extent.id) {
      return absl::InternalError("a cached segment is not what the sequence needs");
    }
  }
  int64_t position = kSinkTokens;
  for (const CachedRun& run : claim.cached) {
    RETURN_IF_ERROR(CheckInside(run.extent, arena_pages_));
    RETURN_IF_ERROR(CheckHolds(run.extent, geometry));
    if (run.token_begin != position) {
      return absl::InternalError(
          absl::StrCat("cached tokens from ", run.token_begin, ", not ", position));
    }
    position = run.token_end();
  }
  if (claim.cached.empty()) return absl::OkStatus();
  const SequenceKv& kv = held.sequence.kv;
  const int64_t end = std::ssize(kv.prompt);
  // Where given tokens follow, no row of the prompt is wanted, unless a segment is built of it.
  SequenceKv claimed;
  claimed.prompt_tokens = kv.prompt_tokens;
  claimed.total_tokens = kv.total_tokens;
  claimed.num_cached_segments = num_cached;
  const bool may_have_all = kv.given_tokens > 0 && executor_.parts().windows == nullptr &&
                            executor_.parts().segments->NothingToBuild(claimed);
  if (position > end || (position == end && !may_have_all) || held.sequence.measures_prompt()) {
    return absl::InternalError(absl::StrCat("KV up to token ", position, " of a prompt of ", end));
  }
  return absl::OkStatus();
}

absl::Status CommandChecker::CheckLengthening(const HeldSequence& held,
                                              const StepCommand::Lengthening& more) const {
  const SequenceKv& kv = held.sequence.kv;
  const int64_t longest = executor_.memory().sizes().max_model_len;
  if (more.total_tokens < kv.total_tokens || more.total_tokens > longest) {
    return absl::InternalError(absl::StrCat("a sequence of ", kv.total_tokens, " tokens grows to ",
                                            more.total_tokens, " of ", longest));
  }
  const std::vector<uint32_t> segments = NeedOf(held, more.total_tokens).segment_tokens;
  if (more.extents.size() != segments.size() || segments.size() < kv.extents.size()) {
    return absl::InternalError(
        absl::StrCat(more.extents.size(), " extents for ", segments.size(), " segments"));
  }
  const size_t num_before =
      std::min(NeedOf(held, kv.total_tokens).segment_tokens.size(), kv.extents.size());
  for (size_t i = 0; i < segments.size(); ++i) {
    const Extent& extent = more.extents[i];
    if (i < num_before && extent.id != kv.extents[i].id) {
      return absl::InternalError("a sequence that grows keeps its extents");
    }
    if (i < num_before) continue;
    RETURN_IF_ERROR(CheckInside(extent, arena_pages_));
    RETURN_IF_ERROR(CheckTakes(extent, segments[i], executor_.memory().sizes().arena_geometry()));
  }
  return absl::OkStatus();
}

// --- Prompts

absl::Status CommandChecker::CheckLanes(const StepCommand& command) {
  const size_t num_lanes = executor_.num_lanes();
  const auto check_lane = [num_lanes](size_t lane, int64_t rows) {
    if (lane < num_lanes && rows > 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(rows, " rows or members of lane ", lane, " of ", num_lanes));
  };
  for (size_t i = 0; i < command.begin.size(); ++i) {
    const StepCommand::Group& group = command.begin[i];
    RETURN_IF_ERROR(check_lane(group.lane, std::ssize(group.members)));
    const bool is_second =
        std::any_of(command.begin.begin(), command.begin.begin() + static_cast<ptrdiff_t>(i),
                    [&group](const auto& before) { return before.lane == group.lane; });
    if (is_second || executor_.lane(group.lane).busy()) {
      return absl::FailedPreconditionError(absl::StrCat("lane ", group.lane, " has a group"));
    }
    if (std::ssize(group.members) > executor_.sizes().max_batch) {
      return absl::InvalidArgumentError("a group has more members than a batch");
    }
    RETURN_IF_ERROR(CheckStage(Stage::kAdmitted, group.members));
  }
  if (command.passes.size() > WorkClock::kMaxInFlight) {
    return absl::InvalidArgumentError("more passes than can be on their way");
  }
  for (const StepCommand::Pass& pass : command.passes) {
    RETURN_IF_ERROR(check_lane(pass.lane, pass.num_rows));
    // Which layers are open is known when the group has begun.
    const bool begins = std::any_of(command.begin.begin(), command.begin.end(),
                                    [&pass](const auto& group) { return group.lane == pass.lane; });
    if (begins) return absl::FailedPreconditionError("passes come behind the command that begins");
    if (pass.num_rows > executor_.sizes().max_rows) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a pass of ", pass.num_rows, " rows of at most ", executor_.sizes().max_rows));
    }
  }
  for (const StepCommand::Measure& measure : command.measure) {
    RETURN_IF_ERROR(check_lane(measure.lane, measure.num_rows));
  }
  return absl::OkStatus();
}

absl::Status CommandChecker::CheckFinish(uint64_t id) const {
  ASSIGN_OR_RETURN(const HeldSequence* const held, Find(id));
  const bool is_read = held->stage == Stage::kPartRead || held->stage == Stage::kRead;
  if (!is_read || held->is_dropped) return Refuse(id, "its prompt has not been read");
  return absl::OkStatus();
}

absl::Status CommandChecker::CheckSaves(const StepCommand& command) const {
  for (const StepCommand::Save& save : command.save) {
    ASSIGN_OR_RETURN(const HeldSequence* const held, Find(save.id));
    // Elsewhere the blocks are not there, or not all of their tokens are.
    const bool has_blocks = held->stage != Stage::kOpen && held->stage != Stage::kLeaving &&
                            held->stage != Stage::kSuspended && held->stage != Stage::kReturning;
    if (!has_blocks) return Refuse(save.id, "its blocks cannot be saved now");
  }
  for (const uint64_t id : command.end_save) {
    if (!copier_.Has(id)) return absl::FailedPreconditionError("a save ends that never began");
  }
  return absl::OkStatus();
}

// --- Rows

bool CommandChecker::Fits(HeldSequence& held, int64_t position) {
  if (position < held.reach) return true;
  const SequenceKv& kv = held.sequence.kv;
  for (const int64_t ahead : {kReachAhead, int64_t{1}}) {
    const int64_t to = std::min(position + ahead, kv.total_tokens);
    if (to <= position) return false;
    if (!Suffices(Held(kv), BlocksFor(held, position, to))) continue;
    held.reach = to;
    return true;
  }
  return false;
}

// Rows of the sequence in one step. A row that draws counts the drafts before it.
int64_t CommandChecker::MostTogether(const HeldSequence& held) {
  const int64_t given = held.sequence.kv.given_left();
  int64_t most = held.draws() ? kMaxSamplingAhead + 1 : std::numeric_limits<int64_t>::max();
  if (given > 0) most = given;
  return std::min(most, std::max<int64_t>(1, held.sequence.policy->RowsTogether(held.sequence.kv)));
}

absl::Status CommandChecker::CheckRow(const StepCommand::Row& row, const HeldSequence& held) const {
  if (row.token < 0 || row.token >= vocab_size_) {
    return Refuse(row.id, absl::StrCat("token ", row.token, " of a vocabulary of ", vocab_size_));
  }
  const SequenceKv& kv = held.sequence.kv;
  if (row.position < kv.drawn_begin() && row.token != kv.GivenAt(row.position - kv.num_tokens)) {
    return Refuse(row.id, absl::StrCat("token ", row.token, " at ", row.position,
                                       " is not the one that was given"));
  }
  const bool has_target =
      held.draws() ? row.target == -1 : row.target >= 0 && row.target < vocab_size_;
  if (has_target) return absl::OkStatus();
  return Refuse(row.id, absl::StrCat("its row has the target ", row.target));
}

// Rows of one policy are neighbours, and so are those of one sequence, in the order of positions.
absl::Status CommandChecker::CheckRows(const StepCommand& command) {
  if (std::ssize(command.rows) > executor_.sizes().max_batch) {
    return absl::InvalidArgumentError("a step has more rows than a batch");
  }
  const HeldSequence* before = nullptr;
  int64_t num_together = 0;
  uint32_t policies = 0;  // bit i: policy i had its rows
  for (const StepCommand::Row& row : command.rows) {
    ASSIGN_OR_RETURN(HeldSequence* const held, FindIn(Stage::kDecoding, row.id));
    const SequenceKv& kv = held->sequence.kv;
    if (held != before) {
      if (before != nullptr) RETURN_IF_ERROR(CheckRuns(*before, num_together));
      RETURN_IF_ERROR(TakeOnce(row.id));
      const uint32_t policy = 1u << static_cast<uint32_t>(kv.settings.policy);
      const bool goes_on =
          before != nullptr && before->sequence.kv.settings.policy == kv.settings.policy;
      if (!goes_on && (policies & policy) != 0) {
        return Refuse(row.id, "rows of one policy are not neighbours");
      }
      policies |= policy;
      num_together = 0;
    }
    ++num_together;
    if (num_together > MostTogether(*held)) {
      return Refuse(row.id, absl::StrCat(num_together, " rows of it in one step"));
    }
    if (row.position != kv.num_tokens + num_together - 1 || !Fits(*held, row.position)) {
      return Refuse(row.id, absl::StrCat("a row at ", row.position, " behind ", kv.num_tokens,
                                         " tokens of ", kv.total_tokens));
    }
    RETURN_IF_ERROR(CheckRow(row, *held));
    // The window's oldest blocks are reused then.
    if (copier_.IsCopying(row.id) && held->sequence.policy->GoesLive(kv)) {
      return Refuse(row.id, "a segment goes live while its blocks are being saved");
    }
    before = held;
  }
  return before == nullptr ? absl::OkStatus() : CheckRuns(*before, num_together);
}

// A row's result depends on the others of its run.
absl::Status CommandChecker::CheckRuns(const HeldSequence& held, int64_t num_rows) {
  const SequenceKv& kv = held.sequence.kv;
  const int64_t rows_of_run = held.sequence.policy->RowsOfRun(kv);
  const int64_t given = kv.num_tokens + num_rows - kv.prompt_tokens;  // fed, behind the step
  if (kv.given_left() <= num_rows || given % rows_of_run == 0) return absl::OkStatus();
  return Refuse(kv.sequence_id, absl::StrCat(num_rows, " rows of it end within a run of ",
                                             rows_of_run, " that share what they retrieve"));
}

// --- Whether what the command builds on is done

absl::StatusOr<bool> CommandChecker::IsReady(const StepCommand& command) {
  for (const uint64_t id : command.end_save) {
    ASSIGN_OR_RETURN(const bool is_done, copier_.IsDone(id));
    if (!is_done) return false;
  }
  for (const StepCommand::Claim& claim : command.claim) {
    ASSIGN_OR_RETURN(const bool is_built, IsClaimBuilt(claim));
    if (!is_built) return false;
  }
  ASSIGN_OR_RETURN(const bool are_unused, AreUnused(command));
  if (!are_unused) return false;
  for (const auto& ids : {std::span(command.leave), std::span(command.rejoin)}) {
    ASSIGN_OR_RETURN(const bool are_copied, AreCopied(ids));
    if (!are_copied) return false;
  }
  for (const uint64_t id : command.suspend) {
    const Sequence& sequence = held_.at(id)->sequence;
    ASSIGN_OR_RETURN(const bool can_suspend, sequence.policy->CanSuspend(sequence.kv));
    if (!can_suspend) return false;
  }
  ASSIGN_OR_RETURN(const bool are_open, LanesAreOpen(command));
  if (!are_open) return false;
  for (const uint64_t id : command.finish) {
    const Sequence& sequence = held_.at(id)->sequence;
    ASSIGN_OR_RETURN(const bool is_taken, sequence.policy->PromptTaken(sequence.kv));
    if (!is_taken) return false;
  }
  return RowsAreReady(command);
}

// A segment that is shared may be one that a sequence here has yet to build.
absl::StatusOr<bool> CommandChecker::IsClaimBuilt(const StepCommand::Claim& claim) const {
  SequenceSegments& segments = *executor_.parts().segments;
  for (const auto& [id, held] : held_) {
    const SequenceKv& kv = held->sequence.kv;
    for (size_t i = kv.num_cached_segments; i < kv.extents.size() && id != claim.id; ++i) {
      const bool is_shared =
          std::any_of(claim.cached.begin(), claim.cached.end(),
                      [&](const CachedRun& run) { return run.extent.id == kv.extents[i].id; });
      if (!is_shared) continue;
      ASSIGN_OR_RETURN(const bool is_built, segments.IsBuilt(kv, i));
      if (!is_built) return false;
    }
  }
  return true;
}

absl::StatusOr<bool> CommandChecker::AreUnused(const StepCommand& command) {
  for (const uint64_t id : command.let_go) {
    if (!executor_.IsUnused(held_.at(id)->sequence)) return false;
  }
  return true;
}

absl::StatusOr<bool> CommandChecker::AreCopied(std::span<const uint64_t> ids) const {
  for (const uint64_t id : ids) {
    ASSIGN_OR_RETURN(const bool is_copied, executor_.IsCopied(held_.at(id)->sequence));
    if (!is_copied) return false;
  }
  return true;
}

absl::StatusOr<bool> CommandChecker::LanesAreOpen(const StepCommand& command) const {
  if (executor_.clock().free() < command.passes.size()) return false;
  for (const StepCommand::Pass& pass : command.passes) {
    const PrefillLane& lane = executor_.lane(pass.lane);
    if (!lane.busy()) continue;  // nothing will run
    ASSIGN_OR_RETURN(const uint32_t open, lane.LayersOpen());
    if (pass.layer < open) continue;
    // The background lets go of the buffers of the next two layers, in time; the layer behind them
    // cannot be open before these are computed.
    if (pass.layer <= lane.layer() + 1) return false;
    return absl::FailedPreconditionError(
        absl::StrCat("a pass of layer ", pass.layer, " while layer ", lane.layer(), " is next"));
  }
  return true;
}

absl::StatusOr<bool> CommandChecker::RowsAreReady(const StepCommand& command) const {
  for (const StepCommand::Row& row : command.rows) {
    const Sequence& sequence = held_.at(row.id)->sequence;
    ASSIGN_OR_RETURN(const bool is_ready, sequence.policy->ReadyForStep(sequence.kv));
    if (!is_ready) return false;
  }
  return true;
}

}  // namespace retroinfer
