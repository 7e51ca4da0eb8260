#include "gpu_worker/engine/prefill_lane.h"

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

constexpr int64_t kSinkRows = kSinkTokens;

}  // namespace

absl::StatusOr<std::unique_ptr<PrefillLane>> PrefillLane::Create(const Parts& parts,
                                                                 const KvGeometry& geometry,
                                                                 int64_t max_tokens,
                                                                 int64_t max_rows,
                                                                 int32_t max_members) {
  auto lane = absl::WrapUnique(new PrefillLane(parts, geometry, max_tokens, max_rows));
  Device& device = *parts.device;
  const Transformer& model = *parts.model;
  const auto allocate = [&device](size_t bytes) {
    return device.Allocate(bytes, MemoryPurpose::kActivations);
  };
  const size_t row_bytes = 2 * static_cast<size_t>(max_tokens) * sizeof(int32_t);
  const size_t last_bytes = static_cast<size_t>(max_members) * sizeof(int32_t);
  const size_t hidden_bytes =
      static_cast<size_t>(model.config().hidden_size) * DTypeBytes(model.activation_dtype());
  ASSIGN_OR_RETURN(lane->host_rows_, device.AllocateHost(row_bytes));
  ASSIGN_OR_RETURN(lane->rows_, allocate(row_bytes));
  ASSIGN_OR_RETURN(lane->host_last_, device.AllocateHost(last_bytes));
  ASSIGN_OR_RETURN(lane->last_, allocate(last_bytes));
  ASSIGN_OR_RETURN(lane->last_hidden_, allocate(static_cast<size_t>(max_members) * hidden_bytes));
  ASSIGN_OR_RETURN(lane->hidden_, allocate(static_cast<size_t>(max_tokens) * hidden_bytes));
  const size_t kv_bytes = 2 * size_t{geometry.num_kv_heads} * static_cast<size_t>(max_tokens) *
                          geometry.prompt_vector_bytes();
  for (DeviceBuffer& kv : lane->kv_) {
    ASSIGN_OR_RETURN(kv, allocate(kv_bytes));
  }
  ASSIGN_OR_RETURN(lane->uploaded_, device.CreateEvent());
  return lane;
}

bool PrefillLane::busy() const {
  return std::any_of(places_.begin(), places_.end(),
                     [](const Place& place) { return place.member.sequence != nullptr; });
}

bool PrefillLane::Has(const SequenceKv& sequence) const {
  return std::any_of(places_.begin(), places_.end(), [&sequence](const Place& place) {
    return place.member.sequence == &sequence;
  });
}

absl::Status PrefillLane::Begin(std::span<const int32_t> prompt, SequenceKv& sequence,
                                AttentionPolicy& policy) {
  const Member member{.prompt = prompt, .sequence = &sequence, .policy = &policy};
  return Begin(std::span(&member, 1));
}

absl::Status PrefillLane::Begin(std::span<const Member> members) {
  RI_CHECK(!busy() && !members.empty() &&
           members.size() * sizeof(int32_t) <= host_last_.size_bytes());
  places_.clear();
  layer_ = 0;
  next_row_ = num_rows_ = 0;
  int64_t tokens = 0;
  for (const Member& member : members) {
    const PromptPart part = member.policy->NextPart(*member.sequence, max_tokens_ - tokens);
    const int64_t cached = member.sequence->cached_tokens();
    member.sequence->part = part;
    places_.push_back({.member = member,
                       .first_row = num_rows_,
                       .num_rows = part.end - part.begin - cached,
                       .first_token = tokens,
                       .cached_tokens = cached,
                       .part = part});
    const Place& place = places_.back();
    RI_CHECK(place.num_rows > (cached == 0 ? 0 : kSinkTokens));
    tokens += place.num_kv_tokens();
    num_rows_ += place.num_rows;
  }
  RI_CHECK(tokens <= max_tokens_);
  const absl::Status uploaded = UploadRows();
  if (!uploaded.ok()) places_.clear();
  return uploaded;
}

absl::Status PrefillLane::UploadRows() {
  // What was copied for the last group has long passed; after an abort it may not have.
  RETURN_IF_ERROR(parts_.device->Synchronize(*uploaded_));
  const auto rows = static_cast<size_t>(num_rows_);
  const auto host = host_rows_.as<int32_t>();
  const std::span<int32_t> ids = host.first(rows);
  const std::span<int32_t> positions = host.subspan(static_cast<size_t>(max_tokens_), rows);
  for (const Place& place : places_) {
    for (int64_t row = 0; row < place.num_rows; ++row) {
      const auto at = static_cast<size_t>(place.first_row + row);
      const int64_t position = place.PositionOf(row);
      ids[at] = place.member.prompt[static_cast<size_t>(position)];
      positions[at] = static_cast<int32_t>(position);
    }
  }
  const size_t bytes = rows * sizeof(int32_t);
  const size_t half = static_cast<size_t>(max_tokens_) * sizeof(int32_t);
  RETURN_IF_ERROR(
      parts_.device->Upload(*parts_.stream, std::as_bytes(ids), rows_.bytes().first(bytes)));
  RETURN_IF_ERROR(parts_.device->Upload(*parts_.stream, std::as_bytes(positions),
                                        rows_.bytes().subspan(half, bytes)));
  return parts_.stream->Record(*uploaded_);
}

LayerKv PrefillLane::KvOf(const Place& place, uint32_t layer) const {
  const size_t vectors = size_t{geometry_.num_kv_heads} * geometry_.prompt_vector_bytes();
  const int64_t tokens = place.num_kv_tokens();
  std::byte* const keys =
      kv_[layer % 2].bytes().device_data() + 2 * static_cast<size_t>(place.first_token) * vectors;
  return {.keys = keys,
          .values = keys + static_cast<size_t>(tokens) * vectors,
          .num_kv_heads = geometry_.num_kv_heads,
          .head_dim = geometry_.head_dim,
          .capacity = tokens,
          .dtype = geometry_.format.prompt};
}

MatrixView PrefillLane::Hidden() const {
  return MatrixView::Dense(hidden_.bytes(), parts_.model->activation_dtype(), max_tokens_,
                           parts_.model->config().hidden_size);
}

absl::StatusOr<uint32_t> PrefillLane::LayersOpen() const {
  for (const Place& place : places_) {
    if (place.member.sequence == nullptr || place.is_dropped || layer_ < 2) continue;
    if (place.member.policy->TakesInOrder(*place.member.sequence)) continue;
    ASSIGN_OR_RETURN(const bool taken,
                     place.member.policy->LayerTaken(*place.member.sequence, layer_ - 2));
    if (!taken) return layer_;
  }
  bool next_is_open = layer_ > 0 && layer_ + 1 < geometry_.num_layers;
  for (const Place& place : places_) {
    if (!next_is_open || place.member.sequence == nullptr || place.is_dropped) continue;
    if (place.member.policy->TakesInOrder(*place.member.sequence)) continue;
    ASSIGN_OR_RETURN(next_is_open,
                     place.member.policy->LayerTaken(*place.member.sequence, layer_ - 1));
  }
  const bool all_in_order = std::all_of(places_.begin(), places_.end(), [](const Place& place) {
    return place.member.sequence == nullptr || place.is_dropped ||
           place.member.policy->TakesInOrder(*place.member.sequence);
  });
  if (all_in_order) return geometry_.num_layers;
  return std::max(layer_ + (next_is_open ? 2 : 1), uint32_t{2});
}

absl::Status PrefillLane::ReadCachedTokens(const Place& place) {
  const SequenceKv& sequence = *place.member.sequence;
  const size_t page_bytes = geometry_.page_bytes();
  for (size_t i = 0; i < sequence.num_cached_segments; ++i) {
    const Extent& extent = sequence.extents[i];
    const PlannedSegment& segment = sequence.prefix.segments[i];
    RETURN_IF_ERROR(parts_.ops->index().ReadSegmentLayer(
        *parts_.stream, {.extent = parts_.arena.subspan(extent.first_page * page_bytes,
                                                        extent.num_pages * page_bytes),
                         .geometry = geometry_,
                         .num_tokens = segment.num_tokens,
                         .layer = layer_,
                         .out = KvOf(place, layer_),
                         .first_token = segment.token_begin}));
  }
  return absl::OkStatus();
}

// Rows [first, last) of a member, which are neighbours in its prompt, too.
void PrefillLane::AddPiece(const Place& place, int64_t first, int64_t last) {
  if (first >= last) return;
  const bool needs_last_only = layer_ + 1 == geometry_.num_layers && !place.member.keeps_all_rows;
  const bool has_last_row = last == place.num_rows && place.is_last_part();
  PromptAttention attention;
  if (place.member.sequence != nullptr && !place.is_dropped) {
    attention = place.member.policy->AttentionOf(*place.member.sequence, layer_);
  }
  pieces_.push_back({.num_rows = last - first,
                     .first_token = place.KvRowOf(first),
                     .kv = KvOf(place, layer_),
                     .num_outputs = needs_last_only ? int64_t{has_last_row} : last - first,
                     .attention = std::move(attention)});
}

absl::Status PrefillLane::CollectPieces(int64_t first_row, int64_t num_rows) {
  pieces_.clear();
  for (const Place& place : places_) {
    const int64_t first = std::max(first_row - place.first_row, int64_t{0});
    const int64_t last = std::min(first_row + num_rows - place.first_row, place.num_rows);
    if (first >= last) continue;
    if (place.cached_tokens == 0) {
      AddPiece(place, first, last);
      continue;
    }
    const bool is_here = place.member.sequence != nullptr && !place.is_dropped;
    if (is_here && first <= kSinkRows && kSinkRows < last) {
      RETURN_IF_ERROR(ReadCachedTokens(place));
    }
    AddPiece(place, first, std::min(last, kSinkRows));
    AddPiece(place, std::max(first, kSinkRows), last);
  }
  return absl::OkStatus();
}

absl::StatusOr<PrefillLane::Outcome> PrefillLane::RunPass(int64_t rows, const MatrixView& logits) {
  RI_CHECK(busy() && layer_ < geometry_.num_layers && rows >= 1 && rows <= max_rows_ &&
           next_row_ + rows <= num_rows_);
  const auto first = static_cast<size_t>(next_row_), count = static_cast<size_t>(rows);
  const DeviceSpan<const int32_t> ids = rows_.as<const int32_t>();
  const MatrixView hidden = Hidden().Rows(next_row_, rows);
  if (next_row_ == 0) RETURN_IF_ERROR(PrepareLayer());
  RETURN_IF_ERROR(CollectPieces(next_row_, rows));
  if (layer_ == 0) {
    RETURN_IF_ERROR(parts_.model->Embed(*parts_.stream, ids.subspan(first, count), hidden));
  }
  RETURN_IF_ERROR(parts_.model->PrefillLayer(
      *parts_.stream, layer_, hidden, ids.subspan(static_cast<size_t>(max_tokens_) + first, count),
      pieces_));
  next_row_ += rows;
  if (next_row_ < num_rows_) return Outcome::kWorked;

  for (const Place& place : places_) {
    if (place.member.sequence == nullptr || place.is_dropped) continue;
    RETURN_IF_ERROR(
        place.member.policy->TakeLayer(*place.member.sequence, layer_, KvOf(place, layer_)));
  }
  ++layer_;
  next_row_ = 0;
  if (layer_ < geometry_.num_layers) return Outcome::kWorked;
  RETURN_IF_ERROR(FillLastLogits(logits));
  return Outcome::kDone;
}

absl::Status PrefillLane::PrepareLayer() {
  for (const Place& place : places_) {
    if (place.member.sequence == nullptr || place.is_dropped) continue;
    RETURN_IF_ERROR(
        place.member.policy->PrepareLayer(*place.member.sequence, layer_, KvOf(place, layer_)));
  }
  return absl::OkStatus();
}

absl::StatusOr<PrefillLane::Outcome> PrefillLane::RunSlice(int64_t rows, const MatrixView& logits) {
  if (next_row_ == 0) {
    ASSIGN_OR_RETURN(const uint32_t open, LayersOpen());
    if (layer_ >= open) return Outcome::kBlocked;
  }
  return RunPass(std::min({rows, max_rows_, num_rows_ - next_row_}), logits);
}

// Gathers the rows of last tokens, so that the vocabulary is gone through once for all.
absl::Status PrefillLane::FillLastLogits(const MatrixView& logits) {
  const std::span<int32_t> last = host_last_.as<int32_t>();
  RETURN_IF_ERROR(parts_.device->Synchronize(*uploaded_));
  size_t count = 0;
  for (const Place& place : places_) {
    if (place.member.sequence == nullptr || place.is_dropped || !place.is_last_part()) continue;
    last[count++] = static_cast<int32_t>(place.first_row + place.num_rows - 1);
  }
  if (count == 0) return absl::OkStatus();
  const auto rows = static_cast<int64_t>(count);
  RETURN_IF_ERROR(parts_.device->Upload(*parts_.stream, std::as_bytes(last.first(count)),
                                        last_.bytes().first(count * sizeof(int32_t))));
  RETURN_IF_ERROR(parts_.stream->Record(*uploaded_));
  const MatrixView gathered =
      MatrixView::Dense(last_hidden_.bytes(), parts_.model->activation_dtype(), rows,
                        parts_.model->config().hidden_size);
  RETURN_IF_ERROR(parts_.ops->model().Embedding(
      *parts_.stream, {.token_ids = last_.as<const int32_t>().first(count),
                       .table = Hidden().Rows(0, num_rows_),
                       .out = gathered}));
  return parts_.model->Logits(*parts_.stream, gathered, logits.Rows(0, rows));
}

bool PrefillLane::FinishesPrompt(const SequenceKv& sequence) const {
  return std::any_of(places_.begin(), places_.end(), [&sequence](const Place& place) {
    return place.member.sequence == &sequence && place.is_last_part();
  });
}

absl::Status PrefillLane::FillLogits(const SequenceKv& sequence, int64_t first_row,
                                     const MatrixView& logits) const {
  const auto place = std::find_if(places_.begin(), places_.end(), [&sequence](const Place& one) {
    return one.member.sequence == &sequence;
  });
  RI_CHECK(place != places_.end() && layer_ == geometry_.num_layers &&
           place->member.keeps_all_rows && first_row + logits.rows <= place->num_rows);
  return parts_.model->Logits(*parts_.stream,
                              Hidden().Rows(place->first_row + first_row, logits.rows), logits);
}

std::vector<SequenceKv*> PrefillLane::Live() const {
  std::vector<SequenceKv*> live;
  for (const Place& place : places_) {
    if (place.member.sequence != nullptr && !place.is_dropped) {
      live.push_back(place.member.sequence);
    }
  }
  return live;
}

void PrefillLane::Drop(const SequenceKv& sequence) {
  for (Place& place : places_) {
    if (place.member.sequence == &sequence) place.is_dropped = true;
  }
  if (layer_ < geometry_.num_layers && Live().empty()) layer_ = geometry_.num_layers;
}

void PrefillLane::Leave(const SequenceKv& sequence) {
  Drop(sequence);
  for (Place& place : places_) {
    if (place.member.sequence == &sequence) place.member.sequence = nullptr;
  }
}

int64_t PrefillLane::processed_tokens(const SequenceKv& sequence) const {
  for (const Place& place : places_) {
    if (place.member.sequence != &sequence) continue;
    const int64_t of_layer = std::clamp(next_row_ - place.first_row, int64_t{0}, place.num_rows);
    return place.part.begin + place.cached_tokens +
           (int64_t{layer_} * place.num_rows + of_layer) / geometry_.num_layers;
  }
  return 0;
}

}  // namespace retroinfer
