// Invariant: SequenceKv::tails[i] is kPending until the tail of plan[i] has been enqueued in full
// or is known to be missing. Prompts are committed behind `written_`; of generated tokens, the
// stream on which the segment is built waits for the copy of its tail.
#include "gpu_worker/kv/segment_tails.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/kv/segment_layout.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

int64_t EndOf(const PlannedSegment& segment) { return segment.token_begin + segment.num_tokens; }

// Whether a lane that has read the sequence's cached tokens, of which it has what the tails of
// their segments hold, has what a tail at `end` needs.
bool HasRows(const SequenceKv& sequence, int64_t end) {
  return end > sequence.read_end() ||
         std::ranges::any_of(sequence.cached,
                             [end](const CachedRun& run) { return run.token_end() == end; });
}

}  // namespace

absl::StatusOr<SegmentTails::Place> SegmentTails::PlaceOf(const Extent& extent) const {
  const SegmentLayout layout(parts_.windows->arena_geometry(), extent.num_tokens);
  if (extent.num_pages < layout.max_pages) {
    return absl::InternalError(absl::StrCat(
        "the store reserved ", extent.num_pages, " pages for a segment of ", extent.num_tokens,
        " tokens, needed are ", layout.max_pages, " with its tail: is it of another version?"));
  }
  return Place{(size_t{extent.first_page} + layout.tail_page) * layout.page_bytes,
               layout.tail_bytes};
}

absl::Status SegmentTails::TakeLayer(SequenceKv& sequence, std::span<const PlannedSegment> plan,
                                     uint32_t layer, const LayerKv& kv) {
  if (sequence.extents.size() != plan.size()) {
    return absl::InternalError("the sequence has another number of extents than segments");
  }
  sequence.tails.resize(plan.size());
  std::fill_n(sequence.tails.begin(), sequence.num_cached_segments, SequenceKv::Tail::kThere);
  const bool is_last = layer + 1 == parts_.windows->geometry().num_window_layers;
  for (size_t i = sequence.num_cached_segments; i < plan.size(); ++i) {
    const int64_t end = EndOf(plan[i]);
    if (end > sequence.part.end) break;
    if (sequence.tails[i] != SequenceKv::Tail::kPending) continue;  // of an earlier part
    const bool has_rows = HasRows(sequence, end);
    if (has_rows) {
      ASSIGN_OR_RETURN(const Place place, PlaceOf(sequence.extents[i]));
      RETURN_IF_ERROR(parts_.windows->WriteTail(
          layer, kv, end, parts_.device_arena.subspan(place.begin, place.bytes)));
    }
    if (is_last) {
      sequence.tails[i] = has_rows ? SequenceKv::Tail::kThere : SequenceKv::Tail::kMissing;
    }
  }
  if (!is_last) return absl::OkStatus();
  std::unique_ptr<Event>& written = written_[sequence.sequence_id];
  if (written == nullptr) {
    ASSIGN_OR_RETURN(written, parts_.device->CreateEvent());
  }
  return parts_.stream->Record(*written);
}

absl::Status SegmentTails::SaveDue(SequenceKv& sequence, std::span<const PlannedSegment> plan) {
  sequence.tails.resize(plan.size());
  for (size_t i = 0; i < plan.size() && EndOf(plan[i]) <= sequence.num_tokens; ++i) {
    if (sequence.tails[i] != SequenceKv::Tail::kPending) continue;
    const int64_t end = EndOf(plan[i]);
    const bool holds = parts_.windows->Holds(sequence.num_tokens, end);
    if (holds) {
      ASSIGN_OR_RETURN(const Place place, PlaceOf(sequence.extents[i]));
      RETURN_IF_ERROR(parts_.windows->SaveTail(
          sequence, end, parts_.host_arena.subspan(place.begin, place.bytes)));
    }
    sequence.tails[i] = holds ? SequenceKv::Tail::kThere : SequenceKv::Tail::kMissing;
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> SegmentTails::IsDone(const SequenceKv& sequence, size_t segment) const {
  if (sequence.TailOf(segment) == SequenceKv::Tail::kPending) return false;
  const auto written = written_.find(sequence.sequence_id);
  return written == written_.end() ? absl::StatusOr<bool>(true)
                                   : parts_.device->IsDone(*written->second);
}

}  // namespace retroinfer
