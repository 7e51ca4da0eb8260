// Invariants, for the segments of one sequence in order of position:
// * num_live <= tickets.size() <= plan.size(): live, then open, then planned.
// * window_begin is where the last live segment ends (kSinkTokens without one), and
//   num_indexed_blocks counts the live segments' meta blocks.
// * extents[i] and a run of meta_blocks belong to plan[i], from admission on. The extent of a named
//   segment may be shared; its pages may be in the block cache as long as it has users here.
#include "gpu_worker/kv/sequence_segments.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "absl/memory/memory.h"
#include "common/kv/segment_layout.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

constexpr SegmentBuilder::Ticket kNoTicket = -1;

int32_t MetaBlocksOf(uint32_t num_tokens) {
  return static_cast<int32_t>(num_tokens / kDecodeSegmentTokens);
}

// Index of the first meta block of plan[segment].
int32_t FirstMetaBlock(const std::vector<PlannedSegment>& plan, size_t segment) {
  int32_t first = 0;
  for (size_t i = 0; i < segment; ++i) first += MetaBlocksOf(plan[i].num_tokens);
  return first;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SequenceSegments>> SequenceSegments::Create(
    const WaveIndexSettings& settings, Parts parts) {
  ASSIGN_OR_RETURN(auto computed, parts.device->CreateEvent());
  return absl::WrapUnique(new SequenceSegments(settings, std::move(parts), std::move(computed)));
}

SequenceSegments::~SequenceSegments() = default;

KvNeed SequenceSegments::Need(int64_t prompt_tokens, int64_t total_tokens) const {
  const std::vector<PlannedSegment> plan =
      PlanSegments(prompt_tokens, total_tokens, settings_.dense_below);
  KvNeed need;
  const int64_t window = MaxWindowTokens(plan, prompt_tokens, total_tokens);
  need.dense_blocks =
      static_cast<int32_t>(1 + (window + kDenseBlockTokens - 1) / kDenseBlockTokens);
  for (const PlannedSegment& segment : plan) {
    need.meta_blocks += MetaBlocksOf(segment.num_tokens);
    need.segment_tokens.push_back(segment.num_tokens);
  }
  return need;
}

KvBlocks SequenceSegments::NeedWhile(const KvGrowth& growth) const {
  const std::vector<PlannedSegment> plan =
      PlanSegments(growth.prompt_tokens, growth.total_tokens, settings_.dense_below);
  const int64_t window = MaxWindowTokens(plan, growth.prompt_tokens, growth.from, growth.to);
  KvBlocks need{.dense =
                    static_cast<int32_t>(1 + (window + kDenseBlockTokens - 1) / kDenseBlockTokens)};
  // Steps before the last token begin the construction of these.
  for (const PlannedSegment& segment : plan) {
    if (segment.build_at >= growth.to && segment.live_at > growth.prompt_tokens) break;
    need.meta += MetaBlocksOf(segment.num_tokens);
  }
  return need;
}

// --- Prefill

int64_t Stretches::FurthestEnd(int64_t begin, int64_t prompt_tokens) const {
  if (least_tokens == 0) return prompt_tokens;
  const auto share = static_cast<int64_t>(share_of_prefix * static_cast<double>(begin));
  const int64_t most = begin + std::max(least_tokens, share);
  return most + kPrefillSegmentTokens >= prompt_tokens ? prompt_tokens : most;
}

int64_t SequenceSegments::StretchEnd(const SequenceKv& sequence) const {
  const int64_t begin = sequence.read_end();
  const int64_t most = parts_.stretches.FurthestEnd(begin, sequence.prompt_tokens);
  if (sequence.reads_whole || most == sequence.prompt_tokens) return sequence.prompt_tokens;
  int64_t end = begin;
  for (const PlannedSegment& segment :
       PlanSegments(sequence.prompt_tokens, sequence.total_tokens, settings_.dense_below)) {
    const int64_t last = segment.token_begin + segment.num_tokens;
    if (segment.live_at > sequence.prompt_tokens || (end > begin && last > most)) break;
    end = std::max(end, last);
  }
  return end > begin ? end : sequence.prompt_tokens;
}

absl::Status SequenceSegments::Begin(SequenceKv& sequence) {
  if (!states_.contains(sequence.sequence_id)) RETURN_IF_ERROR(Create(sequence));
  State& state = *states_.at(sequence.sequence_id);
  state.first_of_part = state.tickets.size();
  state.is_sealed = false;
  while (state.tickets.size() < state.plan.size()) {
    const PlannedSegment& next = state.plan[state.tickets.size()];
    if (next.live_at > sequence.prompt_tokens) break;
    if (next.token_begin + next.num_tokens > sequence.part.end) break;
    RETURN_IF_ERROR(OpenNext(sequence, state));
  }
  return absl::OkStatus();
}

absl::Status SequenceSegments::Create(SequenceKv& sequence) {
  auto state = std::make_unique<State>();
  state->plan = PlanSegments(sequence.prompt_tokens, sequence.total_tokens, settings_.dense_below);
  if (sequence.extents.size() != state->plan.size()) {
    return absl::InternalError("the sequence has another number of extents than segments");
  }
  for (auto& event : state->layer_taken) {
    ASSIGN_OR_RETURN(event, parts_.device->CreateEvent());
  }
  for (const PlannedSegment& segment : state->plan) {
    if (segment.live_at > sequence.prompt_tokens) break;
    sequence.window_begin = segment.token_begin + segment.num_tokens;
  }
  RETURN_IF_ERROR(
      parts_.memory->tables().WriteMeta(*parts_.stream, sequence.table_row, sequence.meta_blocks));
  State& begun = *state;
  states_[sequence.sequence_id] = std::move(state);
  for (const Extent& extent : sequence.extents) ++extent_users_[extent.id];
  begun.tickets.assign(sequence.num_cached_segments, kNoTicket);
  begun.fills.assign(sequence.num_cached_segments, BlockCache::kNoFill);
  begun.is_built.assign(sequence.num_cached_segments, true);
  return absl::OkStatus();
}

void SequenceSegments::EndPart(SequenceKv& sequence) {
  const State& state = *states_.at(sequence.sequence_id);
  // In the place of whatever else held these tokens: they are in the sequence's own segments now.
  sequence.cached.resize(sequence.num_cached_segments);
  for (size_t i = sequence.num_cached_segments; i < state.tickets.size(); ++i) {
    sequence.cached.push_back({.extent = sequence.extents[i],
                               .name = {},  // nobody else reads them with this sequence
                               .token_begin = state.plan[i].token_begin});
  }
}

absl::Status SequenceSegments::OpenNext(const SequenceKv& sequence, State& state) {
  const size_t index = state.tickets.size();
  const PlannedSegment& segment = state.plan[index];
  const size_t first_block = static_cast<size_t>(FirstMetaBlock(state.plan, index));
  const KvMemorySizes& sizes = parts_.memory->sizes();
  const KvRegion region = SegmentLayout(sizes.arena_geometry(), segment.num_tokens)
                              .RegionOf(sizes.heads.Of(sizes.geometry));
  ASSIGN_OR_RETURN(const BlockCache::FillTicket fill, parts_.cache->BeginFill(region.num_pages()));
  const absl::StatusOr<SegmentBuilder::Ticket> ticket = parts_.builder->Open(
      {.token_begin = segment.token_begin,
       .num_tokens = segment.num_tokens,
       .extent = sequence.extents[index],
       .meta_blocks =
           parts_.memory->tables()
               .Meta(sequence.table_row)
               .subspan(first_block, static_cast<size_t>(MetaBlocksOf(segment.num_tokens))),
       .fill = parts_.cache->fill(fill)});
  if (!ticket.ok()) {
    parts_.cache->EndFill(fill, 0, 0);
    return ticket.status();
  }
  state.tickets.push_back(*ticket);
  state.fills.push_back(fill);
  state.is_built.push_back(false);
  return absl::OkStatus();
}

absl::Status SequenceSegments::BackgroundWaitsForCompute() {
  RETURN_IF_ERROR(parts_.stream->Record(*computed_));
  return parts_.builder->background().Wait(*computed_);
}

// Of the leading segments; `shares`: where nobody did for the blocks that it shares with others.
absl::Status SequenceSegments::LoadIndexes(Stream& stream, const SequenceKv& sequence,
                                           const State& state, size_t num_segments, bool shares,
                                           uint32_t layer) {
  const DeviceSpan<const MetaBlockId> blocks = parts_.memory->tables().Meta(sequence.table_row);
  const size_t page_bytes = parts_.memory->meta_pool().geometry.page_bytes();
  size_t first_block = 0;
  for (size_t i = 0; i < num_segments; ++i) {
    const Extent& extent = sequence.extents[i];
    const uint32_t num_tokens = state.plan[i].num_tokens;
    const auto num_blocks = static_cast<size_t>(MetaBlocksOf(num_tokens));
    const size_t first = std::exchange(first_block, first_block + num_blocks);
    if (shares && !parts_.memory->TakeIndexLayer(extent, layer)) continue;
    RETURN_IF_ERROR(parts_.ops->LoadSegmentIndex(
        stream, {.extent = parts_.cache->device_arena().subspan(extent.first_page * page_bytes,
                                                                extent.num_pages * page_bytes),
                 .extent_first_page = extent.first_page,
                 .num_tokens = num_tokens,
                 .layer = layer,
                 .pool = parts_.memory->meta_pool(),
                 .heads = parts_.memory->sizes().heads,
                 .meta_blocks = blocks.subspan(first, num_blocks)}));
  }
  return absl::OkStatus();
}

absl::Status SequenceSegments::TakeLayer(const SequenceKv& sequence, uint32_t layer,
                                         const LayerKv& kv) {
  State& state = *states_.at(sequence.sequence_id);
  const bool is_last = layer + 1 == num_layers();
  if (state.first_of_part == sequence.num_cached_segments) {  // the first stretch
    RETURN_IF_ERROR(
        LoadIndexes(*parts_.stream, sequence, state, sequence.num_cached_segments, true, layer));
  }
  const auto to_build = std::span(state.tickets).subspan(state.first_of_part);
  if (to_build.empty()) {
    state.is_sealed = is_last;
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(BackgroundWaitsForCompute());
  for (const SegmentBuilder::Ticket ticket : to_build) {
    RETURN_IF_ERROR(parts_.builder->BuildLayer(ticket, layer, kv,
                                               sequence.part.first_kept - int64_t{kSinkTokens}));
  }
  if (is_last) {
    for (const SegmentBuilder::Ticket ticket : to_build) {
      RETURN_IF_ERROR(parts_.builder->Seal(ticket));
    }
    state.is_sealed = true;
  }
  return parts_.builder->background().Record(*state.layer_taken[layer % 2]);
}

absl::Status SequenceSegments::TakeWindowLayer(SequenceKv& sequence, uint32_t layer,
                                               const LayerKv& kv) {
  return parts_.tails->TakeLayer(
      sequence, PlanSegments(sequence.prompt_tokens, sequence.total_tokens, settings_.dense_below),
      layer, kv);
}

absl::StatusOr<bool> SequenceSegments::LayerTaken(const SequenceKv& sequence,
                                                  uint32_t layer) const {
  return parts_.device->IsDone(*states_.at(sequence.sequence_id)->layer_taken[layer % 2]);
}

bool SequenceSegments::NothingToBuild(const SequenceKv& sequence) const {
  const std::vector<PlannedSegment> plan =
      PlanSegments(sequence.prompt_tokens, sequence.total_tokens, settings_.dense_below);
  const size_t next = sequence.num_cached_segments;
  return next >= plan.size() || plan[next].live_at > sequence.prompt_tokens;
}

absl::StatusOr<bool> SequenceSegments::PollBuilt(const SequenceKv& sequence, State& state) {
  bool all_built = true;
  for (size_t i = state.num_live; i < state.tickets.size(); ++i) {
    if (state.is_built[i]) continue;
    if (parts_.tails != nullptr) {
      ASSIGN_OR_RETURN(const bool has_tail, parts_.tails->IsDone(sequence, i));
      all_built &= has_tail;
      if (!has_tail) continue;
    }
    ASSIGN_OR_RETURN(const std::optional<BuiltSegment> built,
                     parts_.builder->PollDone(state.tickets[i]));
    if (!built.has_value()) {
      all_built = false;
      continue;
    }
    state.is_built[i] = true;
    parts_.cache->EndFill(state.fills[i], sequence.extents[i].first_page + built->first_kv_page,
                          built->used_pages - built->first_kv_page);
    parts_.on_built(sequence, i, state.plan[i].token_begin);
  }
  return all_built;
}

absl::StatusOr<bool> SequenceSegments::PromptIsBuilt(const SequenceKv& sequence) {
  State& state = *states_.at(sequence.sequence_id);
  ASSIGN_OR_RETURN(const bool all_built, PollBuilt(sequence, state));
  // KV buffers are free once the background is past them.
  return all_built ? LayerTaken(sequence, num_layers() - 1) : absl::StatusOr<bool>(false);
}

absl::StatusOr<bool> SequenceSegments::IsBuilt(const SequenceKv& sequence, size_t index) {
  const auto found = states_.find(sequence.sequence_id);
  if (found == states_.end() || index >= found->second->tickets.size()) return true;
  RETURN_IF_ERROR(PollBuilt(sequence, *found->second).status());
  return bool{found->second->is_built[index]};
}

void SequenceSegments::FinishPrompt(SequenceKv& sequence) {
  State& state = *states_.at(sequence.sequence_id);
  state.num_live = state.tickets.size();
  sequence.num_indexed_blocks = FirstMetaBlock(state.plan, state.num_live);
}

// --- Decode

void SequenceSegments::Grow(const SequenceKv& sequence) {
  const auto found = states_.find(sequence.sequence_id);
  if (found == states_.end()) return;
  State& state = *found->second;
  const size_t before = state.plan.size();
  state.plan = PlanSegments(sequence.prompt_tokens, sequence.total_tokens, settings_.dense_below);
  RI_CHECK(sequence.extents.size() == state.plan.size());
  for (size_t i = before; i < state.plan.size(); ++i) ++extent_users_[sequence.extents[i].id];
}

absl::Status SequenceSegments::BuildDue(const SequenceKv& sequence, State& state) {
  while (state.tickets.size() < state.plan.size()) {
    const PlannedSegment& segment = state.plan[state.tickets.size()];
    if (segment.build_at > sequence.num_tokens) break;
    RETURN_IF_ERROR(OpenNext(sequence, state));
    RETURN_IF_ERROR(BackgroundWaitsForCompute());
    const size_t first_block =
        1 + static_cast<size_t>((segment.token_begin - sequence.window_begin) / kDenseBlockTokens);
    const std::span<const DenseBlockId> blocks =
        std::span(sequence.dense_blocks)
            .subspan(first_block, kDecodeSegmentTokens / kDenseBlockTokens);
    RETURN_IF_ERROR(
        parts_.builder->BuildFromDense(state.tickets.back(), parts_.memory->dense_pool(), blocks));
    RETURN_IF_ERROR(parts_.builder->Seal(state.tickets.back()));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> SequenceSegments::GoLive(SequenceKv& sequence, State& state) {
  bool changed = false;
  while (state.num_live < state.tickets.size() &&
         state.plan[state.num_live].live_at <= sequence.num_tokens) {
    ASSIGN_OR_RETURN(bool all_built, PollBuilt(sequence, state));
    if (!all_built && !state.is_built[state.num_live]) {
      if (!state.is_late) ++num_late_;
      RETURN_IF_ERROR(parts_.builder->background().Synchronize());
      RETURN_IF_ERROR(PollBuilt(sequence, state).status());
    }
    state.is_late = false;
    const uint32_t num_tokens = state.plan[state.num_live].num_tokens;
    sequence.DropWindowBlocks(num_tokens / kDenseBlockTokens);
    sequence.num_indexed_blocks += MetaBlocksOf(num_tokens);
    ++state.num_live;
    changed = true;
  }
  return changed;
}

absl::StatusOr<bool> SequenceSegments::BeginStep(SequenceKv& sequence) {
  State& state = *states_.at(sequence.sequence_id);
  if (parts_.tails != nullptr) RETURN_IF_ERROR(parts_.tails->SaveDue(sequence, state.plan));
  ASSIGN_OR_RETURN(const bool changed, GoLive(sequence, state));
  RETURN_IF_ERROR(BuildDue(sequence, state));
  return changed;
}

absl::StatusOr<bool> SequenceSegments::ReadyForStep(const SequenceKv& sequence) {
  if (parts_.partial != nullptr) {
    ASSIGN_OR_RETURN(const bool is_there, parts_.partial->IsReady(sequence.sequence_id));
    if (!is_there) return false;
  }
  State& state = *states_.at(sequence.sequence_id);
  const size_t due = state.num_live;
  if (due >= state.tickets.size() || state.plan[due].live_at > sequence.num_tokens) return true;
  RETURN_IF_ERROR(PollBuilt(sequence, state).status());
  if (state.is_built[due]) return true;
  if (!std::exchange(state.is_late, true)) ++num_late_;
  return false;
}

bool SequenceSegments::GoesLive(const SequenceKv& sequence) const {
  const State& state = *states_.at(sequence.sequence_id);
  return state.num_live < state.tickets.size() &&
         state.plan[state.num_live].live_at <= sequence.num_tokens;
}

int64_t SequenceSegments::TokensOfOneIndex(const SequenceKv& sequence) const {
  const State& state = *states_.at(sequence.sequence_id);
  for (size_t i = state.num_live; i < state.plan.size(); ++i) {
    const int64_t tokens = state.plan[i].live_at - sequence.num_tokens;
    if (tokens > 0) return tokens;
  }
  return std::numeric_limits<int64_t>::max();
}

bool SequenceSegments::AnyGoesLive(int64_t prompt_tokens, int64_t total_tokens) const {
  const std::vector<PlannedSegment> plan =
      PlanSegments(prompt_tokens, total_tokens, settings_.dense_below);
  return !plan.empty() && plan.back().live_at > prompt_tokens;
}

// --- Suspension

absl::StatusOr<bool> SequenceSegments::CanSuspend(const SequenceKv& sequence) {
  return PollBuilt(sequence, *states_.at(sequence.sequence_id));
}

void SequenceSegments::OnSuspend(const SequenceKv& sequence) {
  State& state = *states_.at(sequence.sequence_id);
  state.is_suspended = true;
  ReleasePages(sequence, state);
}

// Reads the indexes of all built segments back, also of segments that are not live yet (their
// tokens are still in the window). Shared indexes are read into blocks of the sequence's own:
// shared blocks are written on another stream.
absl::Status SequenceSegments::OnResume(const SequenceKv& sequence, Stream& stream) {
  State& state = *states_.at(sequence.sequence_id);
  state.is_suspended = false;
  for (const Extent& extent : sequence.extents) ++extent_users_[extent.id];
  RETURN_IF_ERROR(
      parts_.memory->tables().WriteMeta(stream, sequence.table_row, sequence.meta_blocks));
  for (uint32_t layer = 0; layer < num_layers(); ++layer) {
    RETURN_IF_ERROR(LoadIndexes(stream, sequence, state, state.tickets.size(), false, layer));
  }
  return absl::OkStatus();
}

// --- The end of a sequence

// Pages that this sequence, or one that used the same segment and ended before, may have brought
// into the block cache.
void SequenceSegments::ReleasePages(const SequenceKv& sequence, State& state) {
  for (size_t i = 0; i < sequence.extents.size(); ++i) {
    const Extent& extent = sequence.extents[i];
    const auto users = extent_users_.find(extent.id);
    if (--users->second > 0) continue;
    extent_users_.erase(users);
    if (i >= state.is_built.size() || !state.is_built[i]) continue;
    state.page_releases.push_back(parts_.cache->Release(extent.first_page, extent.num_pages));
  }
}

absl::StatusOr<bool> SequenceSegments::Release(const SequenceKv& sequence) {
  const auto found = states_.find(sequence.sequence_id);
  if (found == states_.end()) return true;  // it ended before its prefill began
  State& state = *found->second;
  if (state.released == nullptr) {
    ASSIGN_OR_RETURN(state.released, parts_.device->CreateEvent());
    // Segments of which all layers are on their way are finished, for others to find.
    for (size_t i = 0; i < state.tickets.size(); ++i) {
      const bool is_whole = state.is_sealed && sequence.TailOf(i) != SequenceKv::Tail::kPending;
      if (is_whole || state.is_built[i]) continue;
      RETURN_IF_ERROR(parts_.builder->Abandon(state.tickets[i]));
    }
    RETURN_IF_ERROR(BackgroundWaitsForCompute());
    RETURN_IF_ERROR(parts_.builder->background().Record(*state.released));
  }
  ASSIGN_OR_RETURN(const bool background_done, parts_.device->IsDone(*state.released));
  if (!background_done) return false;
  if (state.is_sealed) RETURN_IF_ERROR(PollBuilt(sequence, state).status());
  if (!state.is_unshared) {
    state.is_unshared = true;
    for (size_t i = 0; i < state.fills.size(); ++i) {
      if (state.is_built[i]) continue;
      state.fill_end = std::max(state.fill_end, parts_.cache->EndFill(state.fills[i], 0, 0));
    }
    if (!state.is_suspended) ReleasePages(sequence, state);
  }
  // Tickets are done in order.
  if (!state.page_releases.empty() && !parts_.cache->ReleaseDone(state.page_releases.back())) {
    return false;
  }
  if (!parts_.cache->FillDone(state.fill_end)) return false;
  states_.erase(found);
  if (parts_.tails != nullptr) parts_.tails->Forget(sequence);
  return true;
}

}  // namespace retroinfer
