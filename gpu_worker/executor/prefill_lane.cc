#include "gpu_worker/executor/prefill_lane.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/kv/named_segment.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "gpu_worker/executor/lane_buffers.h"

namespace retroinfer {
namespace {

// Prompts of models with window layers are never read whole.
bool KeepsSinks(const ModelConfig& model) {
  return std::ranges::all_of(model.layer_windows, [](int32_t window) { return window == 0; });
}

}  // namespace

MemoryNeed PrefillLane::MemoryOf(const ModelConfig& model, DType activation_dtype,
                                 const KvGeometry& geometry, int64_t max_tokens,
                                 int32_t max_members) {
  const LaneBufferSizes sizes(model, activation_dtype, geometry, max_tokens, max_members);
  const size_t bytes = sizes.total() + GroupRows::Bytes(max_tokens, max_members);
  const MemoryNeed need = MemoryNeed(MemoryPurpose::kActivations, bytes) +
                          CachedKvReader::MemoryOf(max_tokens, max_members);
  return KeepsSinks(model) ? need + SinkCache::MemoryOf(geometry) : need;
}

absl::StatusOr<std::unique_ptr<PrefillLane>> PrefillLane::Create(const Parts& parts,
                                                                 const KvGeometry& geometry,
                                                                 int64_t max_tokens,
                                                                 int64_t max_rows,
                                                                 int32_t max_members) {
  auto lane = absl::WrapUnique(new PrefillLane(parts, geometry, max_tokens, max_rows));
  Device& device = *parts.device;
  const LaneBufferSizes sizes(parts.model->config(), parts.model->activation_dtype(), geometry,
                              max_tokens, max_members);
  const auto allocate = [&device](size_t bytes) {
    return device.Allocate(bytes, MemoryPurpose::kActivations);
  };
  lane->max_members_ = static_cast<size_t>(max_members);
  ASSIGN_OR_RETURN(lane->rows_, GroupRows::Create(device, *parts.stream, max_tokens, max_members));
  ASSIGN_OR_RETURN(lane->reader_, CachedKvReader::Create({.device = parts.device,
                                                          .ops = parts.ops,
                                                          .stream = parts.stream,
                                                          .arena = parts.arena,
                                                          .heads = parts.heads},
                                                         geometry, max_tokens, max_members));
  ASSIGN_OR_RETURN(lane->last_hidden_, allocate(sizes.last_hidden));
  ASSIGN_OR_RETURN(lane->hidden_, allocate(sizes.hidden));
  for (DeviceBuffer& kv : lane->kv_) {
    ASSIGN_OR_RETURN(kv, allocate(sizes.kv));
  }
  if (KeepsSinks(parts.model->config())) {
    ASSIGN_OR_RETURN(
        lane->sinks_,
        SinkCache::Create({.device = parts.device, .ops = parts.ops, .stream = parts.stream},
                          geometry));
  }
  return lane;
}

absl::Status PrefillLane::Begin(std::span<const Member> members) {
  RI_CHECK(!busy() && !members.empty() && members.size() <= max_members_);
  members_.clear();
  failures_.clear();
  next_row_ = num_rows_ = layer_ = 0;
  std::vector<RunMember> run_members;
  for (const Member& member : members) {
    const SequenceKv& sequence = *member.sequence;
    PromptPart part = member.policy->NextPart(sequence, max_tokens_);
    if (sequence.reads_all()) part.first_kept = sequence.shared_end;
    members_.push_back({.member = member,
                        .cached_tokens = sequence.read_end() - int64_t{kSinkTokens},
                        .is_head = sequence.given_tokens > 0,
                        .part = part});
    run_members.push_back(RunMemberOf(sequence, member.prompt, part, member.keeps_all_rows));
  }
  runs_ = PlanRuns(run_members);
  for (const PrefillRun& run : runs_.runs) {
    num_rows_ += run.num_rows;
    for (const size_t member : run.members) members_[member].num_rows += run.num_rows;
    for (const size_t member : run.ends_with_it) members_[member].last_row = num_rows_ - 1;
  }
  BeginSinks();
  absl::Status begun = LayOutKv();
  std::vector<std::span<const int32_t>> prompts;
  for (const Member& member : members) prompts.push_back(member.prompt);
  if (begun.ok()) begun = rows_->Upload(runs_.runs, prompts);
  std::vector<std::span<const CachedRun>> cached;
  for (const Member& member : members) cached.push_back(member.sequence->cached);
  if (begun.ok()) begun = reader_->Begin(std::move(cached));
  if (!begun.ok()) members_.clear();
  return begun;
}

void PrefillLane::BeginSinks() {
  only_sinks_ = sinks_.has_value() && std::ranges::all_of(runs_.runs, [this](const auto& run) {
                  return run.first_position == 0 && run.num_rows == int64_t{kSinkTokens} &&
                         members_[run.members.front()].member.sequence->reads_all();
                });
  if (!sinks_.has_value()) return;
  std::vector<std::span<const int32_t>> prompts;
  for (const PrefillRun& run : runs_.runs) {
    if (only_sinks_) prompts.push_back(members_[run.members.front()].member.prompt);
  }
  sinks_->Begin(prompts);
}

// Lays out the lane's KV: first the buffers of the prefix groups, then the members' own KV.
absl::Status PrefillLane::LayOutKv() {
  prefix_groups_.assign(runs_.num_prefix_groups, {});
  std::vector<size_t> sizes(runs_.num_prefix_groups, 0);
  for (size_t i = 0; i < members_.size(); ++i) {
    const PromptPart& part = members_[i].part;
    PrefixGroup& prefix_group = prefix_groups_[runs_.prefix_group_of[i]];
    prefix_group.num_tokens = std::max(prefix_group.num_tokens, part.num_kept());
    prefix_group.row_of_position = part.num_context - part.begin;
    ++sizes[runs_.prefix_group_of[i]];
  }
  int64_t tokens = 0;
  for (PrefixGroup& prefix_group : prefix_groups_) {
    prefix_group.first_token = tokens;
    tokens += prefix_group.num_tokens;
  }
  for (size_t i = 0; i < members_.size(); ++i) {
    MemberState& state = members_[i];
    const SequenceKv& sequence = *state.member.sequence;
    state.has_own_kv =
        sizes[runs_.prefix_group_of[i]] > 1 && !state.member.policy->TakesInOrder(sequence);
    if (state.has_own_kv) {
      state.part.first_kept = sequence.shared_end;
      state.own_kv_begin = tokens;
      state.own_kv_tokens = state.num_rows + sequence.read_end() - sequence.shared_end;
      tokens += state.own_kv_tokens;
    }
    state.member.sequence->part = state.part;
  }
  tokens = std::max(tokens, num_rows_);
  if (tokens <= max_tokens_) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("a group of prompts takes ", tokens, " tokens of a lane of ", max_tokens_));
}

LayerKv PrefillLane::KvAt(int64_t first_token, int64_t num_tokens) const {
  const size_t vectors = size_t{geometry_.num_kv_heads} * geometry_.prompt_vector_bytes();
  std::byte* const keys =
      kv_[layer_ % 2].bytes().device_data() + 2 * static_cast<size_t>(first_token) * vectors;
  return {.keys = keys,
          .values = keys + static_cast<size_t>(num_tokens) * vectors,
          .num_kv_heads = geometry_.num_kv_heads,
          .head_dim = geometry_.head_dim,
          .capacity = num_tokens,
          .dtype = geometry_.format.prompt,
          .rounds_to_eight_bits = geometry_.format.token == kEightBitTokens};
}

LayerKv PrefillLane::TakenKvOf(size_t member) const {
  const MemberState& state = members_[member];
  return state.has_own_kv ? KvAt(state.own_kv_begin, state.own_kv_tokens)
                          : KvOf(prefix_groups_[runs_.prefix_group_of[member]]);
}

MatrixView PrefillLane::Hidden() const {
  return MatrixView::Dense(hidden_.bytes(), parts_.model->activation_dtype(), max_tokens_,
                           parts_.model->config().hidden_size);
}

absl::StatusOr<bool> PrefillLane::AllTook(uint32_t layer) const {
  bool taken = true;
  for (const MemberState& state : members_) {
    // Window layers are taken over on the compute stream.
    if (!state.is_live() || map_[layer].is_window || !taken) continue;
    const SequenceKv& sequence = *state.member.sequence;
    if (state.member.policy->TakesInOrder(sequence)) continue;
    ASSIGN_OR_RETURN(taken, state.member.policy->LayerTaken(sequence, map_[layer].number));
  }
  return taken;
}

absl::StatusOr<uint32_t> PrefillLane::LayersOpen() const {
  if (layer_ >= 2) {
    ASSIGN_OR_RETURN(const bool is_open, AllTook(layer_ - 2));
    if (!is_open) return layer_;
  }
  bool next_is_open = layer_ > 0 && layer_ + 1 < num_layers();
  if (next_is_open) {
    ASSIGN_OR_RETURN(next_is_open, AllTook(layer_ - 1));
  }
  const bool all_in_order =
      std::all_of(members_.begin(), members_.end(), [](const MemberState& state) {
        return state.member.sequence == nullptr || state.is_dropped ||
               state.member.policy->TakesInOrder(*state.member.sequence);
      });
  if (all_in_order) return num_layers();
  return std::max(layer_ + (next_is_open ? 2 : 1), uint32_t{2});
}

// Reads the cached tokens before the run that a live member needs. The members of a read refer to
// the same extent, or to equal ones: any live member's will do.
absl::Status PrefillLane::ReadCachedTokens(const PrefillRun& run) {
  if (map_[layer_].is_window) return ReadTails(run);
  const size_t token_bytes = 2 * size_t{geometry_.num_kv_heads} * geometry_.prompt_vector_bytes();
  const auto is_live = [this](size_t member) { return members_[member].is_live(); };
  const PrefixGroup& prefix_group = prefix_groups_[run.prefix_group];
  for (size_t i = 0; i < run.reads.size();) {
    const CachedRead& read = run.reads[i++];
    const auto reader = std::ranges::find_if(read.members, is_live);
    if (reader == read.members.end()) continue;
    const std::vector<CachedRun>& cached = members_[*reader].member.sequence->cached;
    size_t last = read.index + 1;
    const bool is_block = IsBlock(cached[read.index].num_tokens());
    // Blocks that the same members read next are read with it.
    while (is_block && i < run.reads.size() && run.reads[i].members == read.members &&
           run.reads[i].index == last && IsBlock(cached[last].num_tokens())) {
      RETURN_IF_ERROR(ReadIntoOwnKv(run.reads[i]));
      ++last;
      ++i;
    }
    const int64_t begin = cached[read.index].token_begin;
    RETURN_IF_ERROR(reader_->Read(*reader, read.index, last, map_[layer_].number,
                                  KvOf(prefix_group), begin + prefix_group.row_of_position));
    RETURN_IF_ERROR(ReadIntoOwnKv(read));
    const auto bytes = static_cast<uint64_t>(cached[last - 1].token_end() - begin) * token_bytes;
    const auto readers = static_cast<uint64_t>(std::ranges::count_if(read.members, is_live));
    counters_.staged_bytes += bytes;
    counters_.shared_bytes += (readers - 1) * bytes;
  }
  return absl::OkStatus();
}

// Of a window layer, the rows behind cached tokens see no more than the tail of their last segment.
// All tails are read, since prompts that share the first segments may go on behind any of them.
absl::Status PrefillLane::ReadTails(const PrefillRun& run) {
  const auto is_live = [this](size_t member) { return members_[member].is_live(); };
  for (const CachedRead& read : run.reads) {
    const auto reader = std::ranges::find_if(read.members, is_live);
    if (reader == read.members.end()) continue;
    RETURN_IF_ERROR(reader_->ReadTail(*reader, read.index, *parts_.windows, map_[layer_].number,
                                      KvOf(prefix_groups_[run.prefix_group])));
  }
  return absl::OkStatus();
}

// Reads cached tokens into the own KV of members whose policies take them over: a policy builds
// segments of cached tokens that no shared index covers, or keeps them in the window.
absl::Status PrefillLane::ReadIntoOwnKv(const CachedRead& read) {
  for (const size_t member : read.members) {
    const MemberState& state = members_[member];
    if (!state.is_live() || !state.has_own_kv) continue;
    const SequenceKv& sequence = *state.member.sequence;
    const int64_t begin = sequence.cached[read.index].token_begin;
    if (begin < state.part.first_kept) continue;
    RETURN_IF_ERROR(reader_->Read(member, read.index, read.index + 1, map_[layer_].number,
                                  TakenKvOf(member), sequence.TakenRowOf(begin)));
  }
  return absl::OkStatus();
}

absl::Status PrefillLane::ReadWindow(const PrefillRun& run) {
  const auto is_live = [this](size_t member) { return members_[member].is_live(); };
  const auto member = std::ranges::find_if(run.ends_with_it, is_live);
  if (member == run.ends_with_it.end()) return absl::OkStatus();
  const SequenceKv& sequence = *members_[*member].member.sequence;
  if (!sequence.reads_all()) return absl::OkStatus();
  const uint64_t bytes = static_cast<uint64_t>(sequence.read_end() - sequence.shared_end) * 2 *
                         geometry_.num_kv_heads * geometry_.prompt_vector_bytes();
  const auto readers = static_cast<uint64_t>(std::ranges::count_if(run.ends_with_it, is_live));
  counters_.staged_bytes += bytes;
  counters_.shared_bytes += (readers - 1) * bytes;
  return reader_->ReadFrom(*member, sequence.num_cached_segments, map_[layer_].number,
                           TakenKvOf(*member), sequence.TakenRowOf(sequence.shared_end));
}

absl::Status PrefillLane::TakeLayerOf(size_t member) {
  AttentionPolicy& policy = *members_[member].member.policy;
  SequenceKv& sequence = *members_[member].member.sequence;
  const LayerMap::Place place = map_[layer_];
  if (place.is_window) {
    // Of all rows, shared ones included.
    const LayerKv kv = KvOf(prefix_groups_[runs_.prefix_group_of[member]]);
    if (sequence.table_row >= 0) {
      RETURN_IF_ERROR(parts_.windows->TakeLayer(sequence, place.number, kv));
    }
    RETURN_IF_ERROR(policy.TakeWindowLayer(sequence, place.number, kv));
  } else {
    RETURN_IF_ERROR(policy.TakeLayer(sequence, place.number, TakenKvOf(member)));
  }
  if (layer_ + 1 == num_layers()) policy.EndLayers(sequence);
  return absl::OkStatus();
}

// Hands the layer over for the prompts that end with the run: the next run may overwrite their
// rows.
absl::Status PrefillLane::TakeLayer(const PrefillRun& run) {
  RETURN_IF_ERROR(ReadWindow(run));
  for (const size_t member : run.ends_with_it) {
    MemberState& state = members_[member];
    if (!state.is_live()) continue;
    absl::Status taken = TakeLayerOf(member);
    if (taken.ok()) continue;
    // One member's failure does not end the group: the other members' rows are right.
    state.is_dropped = true;
    failures_.emplace_back(state.member.sequence, std::move(taken));
  }
  return absl::OkStatus();
}

// Adds rows [first, last) of the run to the pass that is being enqueued.
void PrefillLane::AddPiece(const PrefillRun& run, int64_t first, int64_t last) {
  const PrefixGroup& prefix_group = prefix_groups_[run.prefix_group];
  const bool ends_run = last == run.num_rows;
  const auto is_output = [&](size_t i) { return members_[i].gives_logits(); };
  int64_t num_outputs = last - first;
  if (layer_ + 1 == num_layers() && !members_[run.members.front()].member.keeps_all_rows) {
    num_outputs = ends_run && std::ranges::any_of(run.ends_with_it, is_output) ? 1 : 0;
  }
  PrefillPiece& piece = pieces_.emplace_back(PrefillPiece{
      .num_rows = last - first,
      .first_token = run.first_position + first + prefix_group.row_of_position,
      .kv = KvOf(prefix_group),
      .num_outputs = num_outputs,
      .window = {},
      .choice = run.is_sparse && layer_ + 1 < num_layers() ? parts_.sparse : BlockChoice{},
      .copies = {},
      .before = nullptr,
      .behind = nullptr});
  for (const size_t member : run.members) {
    const MemberState& state = members_[member];
    if (!state.is_live()) continue;
    const SequenceKv& sequence = *state.member.sequence;
    if (run.members.size() == 1) piece.window = state.member.policy->WindowOf(sequence);
    if (!state.has_own_kv || map_[layer_].is_window) continue;
    piece.copies.push_back(
        {.kv = TakenKvOf(member), .first_token = sequence.TakenRowOf(run.first_position + first)});
  }
  if (only_sinks_) return AddSink(run, piece, first == 0, ends_run);
  if (first == 0 && !run.reads.empty())
    piece.before = [this, run = &run] { return ReadCachedTokens(*run); };
  if (ends_run) piece.behind = [this, run = &run] { return TakeLayer(*run); };
}

void PrefillLane::AddSink(const PrefillRun& run, PrefillPiece& piece, bool begins, bool ends) {
  const auto i = static_cast<size_t>(&run - runs_.runs.data());
  const uint32_t layer = map_[layer_].number;
  const LayerKv kv = KvOf(prefix_groups_[run.prefix_group]);
  const int64_t row = prefix_groups_[run.prefix_group].row_of_position;
  if (begins && sinks_->knows_all()) {
    piece.before = [this, i, layer, kv, row, copies = std::exchange(piece.copies, {})] {
      for (const PrefillPiece::Copy& copy : copies) {
        RETURN_IF_ERROR(sinks_->Read(i, layer, copy.kv, copy.first_token));
      }
      return sinks_->Read(i, layer, kv, row);
    };
  }
  if (!ends) return;
  piece.behind = [this, i, layer, kv, row, run = &run] {
    if (!sinks_->knows_all()) RETURN_IF_ERROR(sinks_->Write(i, layer, kv, row));
    return TakeLayer(*run);
  };
}

void PrefillLane::CollectPieces(int64_t first_row, int64_t num_rows) {
  pieces_.clear();
  for (const PrefillRun& run : runs_.runs) {
    const int64_t first = std::max(first_row - run.first_row, int64_t{0});
    const int64_t last = std::min(first_row + num_rows - run.first_row, run.num_rows);
    if (first >= last) continue;
    AddPiece(run, first, last);
    if (!only_sinks_ || !sinks_->knows_all()) CountRows(run, last - first);
  }
}

void PrefillLane::CountRows(const PrefillRun& run, int64_t rows) {
  const auto here =
      std::ranges::count_if(run.members, [&](size_t i) { return members_[i].is_live(); });
  counters_.computed_rows += static_cast<uint64_t>(rows);
  if (here > 1) counters_.shared_rows += static_cast<uint64_t>(rows * (here - 1));
}

absl::StatusOr<PrefillLane::Outcome> PrefillLane::RunPass(int64_t rows, const MatrixView& logits) {
  RI_CHECK(busy() && layer_ < num_layers() && rows >= 1 && rows <= max_rows_ &&
           next_row_ + rows <= num_rows_ && WholeUnits(rows) == rows);
  if (next_row_ == 0) RETURN_IF_ERROR(PrepareLayer());
  CollectPieces(next_row_, rows);
  if (only_sinks_ && sinks_->knows_all()) {
    for (const PrefillPiece& piece : pieces_) {
      if (piece.before) RETURN_IF_ERROR(piece.before());
      if (piece.behind) RETURN_IF_ERROR(piece.behind());
    }
  } else {
    RETURN_IF_ERROR(Compute(rows));
  }
  next_row_ += rows;
  if (next_row_ < num_rows_) return Outcome::kWorked;

  ++layer_;
  next_row_ = 0;
  if (layer_ < num_layers()) return Outcome::kWorked;
  if (only_sinks_) sinks_->End();
  RETURN_IF_ERROR(FillLastLogits(logits));
  return Outcome::kDone;
}

absl::Status PrefillLane::Compute(int64_t rows) {
  const MatrixView hidden = Hidden().Rows(next_row_, rows);
  if (layer_ == 0) {
    RETURN_IF_ERROR(parts_.model->Embed(*parts_.stream, rows_->ids(next_row_, rows), hidden));
  }
  return parts_.model->PrefillLayer(*parts_.stream, layer_, hidden,
                                    rows_->positions(next_row_, rows), pieces_);
}

absl::Status PrefillLane::PrepareLayer() {
  for (size_t i = 0; i < members_.size(); ++i) {
    const MemberState& state = members_[i];
    if (!state.is_live()) continue;
    SequenceKv& sequence = *state.member.sequence;
    const LayerMap::Place place = map_[layer_];
    if (!place.is_window) {
      RETURN_IF_ERROR(state.member.policy->PrepareLayer(sequence, place.number, TakenKvOf(i)));
    } else if (state.part.begin > 0) {
      RETURN_IF_ERROR(parts_.windows->ReadContext(sequence, place.number,
                                                  KvOf(prefix_groups_[runs_.prefix_group_of[i]])));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<PrefillLane::Outcome> PrefillLane::RunSlice(int64_t rows, const MatrixView& logits) {
  if (next_row_ == 0) {
    ASSIGN_OR_RETURN(const uint32_t open, LayersOpen());
    if (layer_ >= open) return Outcome::kBlocked;
  }
  return RunPass(WholeUnits(std::min(rows, max_rows_)), logits);
}

// Gathers the rows of last tokens, so that the vocabulary is gone through once for all.
absl::Status PrefillLane::FillLastLogits(const MatrixView& logits) {
  std::vector<int32_t> last;
  for (const MemberState& state : members_) {
    if (state.is_live() && state.gives_logits())
      last.push_back(static_cast<int32_t>(state.last_row));
  }
  if (last.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const DeviceSpan<const int32_t> rows, rows_->UploadLast(last));
  const MatrixView gathered =
      MatrixView::Dense(last_hidden_.bytes(), parts_.model->activation_dtype(), std::ssize(last),
                        parts_.model->config().hidden_size);
  RETURN_IF_ERROR(parts_.ops->model().Embedding(
      *parts_.stream, {.token_ids = rows, .table = Hidden().Rows(0, num_rows_), .out = gathered}));
  return parts_.model->Logits(*parts_.stream, gathered, logits.Rows(0, std::ssize(last)));
}

absl::Status PrefillLane::FillLogits(const SequenceKv& sequence, int64_t first_row,
                                     const MatrixView& logits) const {
  const auto state = std::ranges::find_if(
      members_, [&sequence](const MemberState& one) { return one.member.sequence == &sequence; });
  RI_CHECK(state != members_.end() && layer_ == num_layers() && state->member.keeps_all_rows &&
           first_row + logits.rows <= state->num_rows);
  return parts_.model->Logits(
      *parts_.stream, Hidden().Rows(state->last_row + 1 - state->num_rows + first_row, logits.rows),
      logits);
}

std::vector<SequenceKv*> PrefillLane::Live() const {
  std::vector<SequenceKv*> live;
  for (const MemberState& state : members_) {
    SequenceKv* const sequence = state.member.sequence;
    if (sequence != nullptr && !state.is_dropped) live.push_back(sequence);
  }
  return live;
}

void PrefillLane::Drop(const SequenceKv& sequence) {
  for (MemberState& state : members_) {
    if (state.member.sequence == &sequence) state.is_dropped = true;
  }
  if (layer_ < num_layers() && Live().empty()) layer_ = num_layers();
}

int64_t PrefillLane::processed_tokens(const SequenceKv& sequence) const {
  for (size_t i = 0; i < members_.size(); ++i) {
    const MemberState& state = members_[i];
    if (state.member.sequence != &sequence) continue;
    const int64_t of_layer = runs_.RowsBefore(next_row_, i);
    return state.part.begin + state.cached_tokens +
           (int64_t{layer_} * state.num_rows + of_layer) / num_layers();
  }
  return 0;
}

}  // namespace retroinfer
