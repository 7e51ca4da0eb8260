// Invariants: the pages that are marked as absent lie in the KV pages of segments_; a segment is in
// segments_ as long as a sequence has claimed it that found it partial.
#include "gpu_worker/kv/partial_segments.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/kv/segment_layout.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

absl::Status Lost(const absl::Status& why) {
  return common::WithReason(absl::UnavailableError(absl::StrCat(
                                "a part of the prompt's KV could not be read from the disk: ",
                                std::string(why.message()), "; send the request again")),
                            "KV_NOT_READ");
}

// Adds a part behind those of `runs`, or to the last of them. Parts come in order.
void AddPart(uint32_t part, std::vector<uint32_t>& runs) {
  if (!runs.empty()) {
    const uint32_t end = runs[runs.size() - 2] + runs.back();
    if (part < end) return;
    if (part == end) {
      ++runs.back();
      return;
    }
  }
  runs.push_back(part);
  runs.push_back(1);
}

}  // namespace

PartialSegments::PartialSegments(AbsentPages* absent, Stream* stream, const KvGeometry& geometry,
                                 Fetch fetch)
    : absent_(*absent), stream_(*stream), geometry_(geometry), fetch_(std::move(fetch)) {}

void PartialSegments::Claim(uint64_t sequence_id, std::span<const Extent> extents) {
  for (const Extent& extent : extents) {
    const auto known = segments_.find(extent.first_page);
    if (extent.part_bytes == 0) {
      // The store shares it as a whole now.
      if (known != segments_.end() && extent.cached) ClearAll(known->second);
      continue;
    }
    if (!holders_[sequence_id].segments.emplace(extent.id, extent.first_page).second) continue;
    Segment& segment = segments_[extent.first_page];
    if (segment.users++ == 0) {
      segment.extent = extent;
      const uint32_t index_pages = SegmentLayout(geometry_, extent.num_tokens).first_kv_page;
      if (extent.num_pages > index_pages) {
        absent_.Mark(extent.first_page + index_pages, extent.num_pages - index_pages);
      }
    }
  }
}

void PartialSegments::LetGo(uint64_t sequence_id) {
  const auto found = holders_.find(sequence_id);
  if (found == holders_.end()) return;
  for (const auto& [extent_id, first_page] : found->second.segments) {
    const auto segment = segments_.find(first_page);
    if (--segment->second.users > 0) continue;
    ClearAll(segment->second);
    segments_.erase(segment);
  }
  holders_.erase(found);
}

void PartialSegments::ClearAll(Segment& segment) {
  absent_.Clear(segment.extent.first_page, segment.extent.num_pages);
  segment.there_until = kAllParts;
}

// Pages that these parts hold as a whole.
void PartialSegments::ClearParts(const Segment& segment, uint32_t first, uint32_t count) {
  const uint64_t part_bytes = segment.extent.part_bytes;
  const uint64_t page_bytes = geometry_.page_bytes();
  const uint64_t num_pages = segment.extent.num_pages;
  const uint64_t begin = (first * part_bytes + page_bytes - 1) / page_bytes;
  const uint64_t end = std::min(num_pages, (uint64_t{first} + count) * part_bytes / page_bytes);
  if (begin >= end) return;
  absent_.Clear(segment.extent.first_page + static_cast<PageId>(begin),
                static_cast<uint32_t>(end - begin));
}

const PartialSegments::Segment* PartialSegments::Holding(PageId page) const {
  const auto found = segments_.upper_bound(page);
  if (found == segments_.begin()) return nullptr;
  const Segment& segment = std::prev(found)->second;
  return page - segment.extent.first_page < segment.extent.num_pages ? &segment : nullptr;
}

std::vector<PartsOfExtent> PartialSegments::PartsOf(std::vector<PageId> pages) {
  std::vector<PartsOfExtent> wanted;
  std::ranges::sort(pages);
  const Segment* segment = nullptr;
  const uint64_t page_bytes = geometry_.page_bytes();
  for (const PageId page : pages) {
    const Segment* const holding = Holding(page);
    if (holding == nullptr) continue;
    if (holding != segment) {
      segment = holding;
      wanted.push_back({segment->extent.id, {}});
    }
    const uint64_t first_byte = (page - segment->extent.first_page) * page_bytes;
    const uint64_t part_bytes = segment->extent.part_bytes;
    for (uint64_t part = first_byte / part_bytes;
         part <= (first_byte + page_bytes - 1) / part_bytes; ++part) {
      AddPart(static_cast<uint32_t>(part), wanted.back().runs);
    }
  }
  return wanted;
}

absl::Status PartialSegments::AskFor(std::vector<uint64_t> lacking) {
  ASSIGN_OR_RETURN(const std::span<const PageId> asked, absent_.TakeAsked(stream_));
  if (lacking.empty() || asked.empty()) return absl::OkStatus();
  for (Request& request : Split(lacking, PartsOf({asked.begin(), asked.end()}))) {
    // A sequence that was given the same pages without being told that they are absent waits, too.
    for (const uint64_t id : request.sequences) ++holders_[id].num_requests;
    std::vector<PartsOfExtent> wanted = request.wanted;
    fetch_(std::move(wanted), [mailbox = mailbox_, request = std::move(request)](Answer answer) {
      absl::MutexLock lock(&mailbox->mutex);
      mailbox->answered.push_back({request.sequences, request.wanted, std::move(answer)});
    });
  }
  return absl::OkStatus();
}

bool PartialSegments::Holds(uint64_t sequence_id, uint64_t extent_id) const {
  const auto holder = holders_.find(sequence_id);
  return holder != holders_.end() && holder->second.segments.contains(extent_id);
}

std::vector<PartialSegments::Request> PartialSegments::Split(
    std::span<const uint64_t> lacking, std::vector<PartsOfExtent> wanted) const {
  const auto holds_any = [this](uint64_t id, std::span<const PartsOfExtent> of) {
    return std::ranges::any_of(
        of, [&](const PartsOfExtent& parts) { return Holds(id, parts.extent_id); });
  };
  // What these lack is others', so nobody knows whose: they wait for all.
  std::vector<uint64_t> strangers;
  for (const uint64_t id : lacking) {
    if (!holds_any(id, wanted)) strangers.push_back(id);
  }
  std::vector<Request> requests;
  for (const uint64_t id : lacking) {
    // Sequences of one text share its first segment at least, and so the call.
    const auto end = std::ranges::stable_partition(
        wanted, [&](const PartsOfExtent& parts) { return Holds(id, parts.extent_id); });
    if (end.begin() == wanted.begin()) continue;
    Request& request = requests.emplace_back();
    request.sequences = strangers;
    request.wanted.assign(std::make_move_iterator(wanted.begin()),
                          std::make_move_iterator(end.begin()));
    wanted.erase(wanted.begin(), end.begin());
    for (const uint64_t other : lacking) {
      if (holds_any(other, request.wanted)) request.sequences.push_back(other);
    }
  }
  if (!wanted.empty() && !strangers.empty()) {
    Request& request = requests.emplace_back();
    request.sequences = std::move(strangers);
    request.wanted = std::move(wanted);
  }
  return requests;
}

void PartialSegments::TakeAnswers() {
  std::vector<Request> answered;
  {
    absl::MutexLock lock(&mailbox_->mutex);
    answered.swap(mailbox_->answered);
  }
  for (const Request& request : answered) Take(request);
}

void PartialSegments::Take(const Request& request) {
  for (const uint64_t id : request.sequences) {
    const auto holder = holders_.find(id);
    if (holder == holders_.end()) continue;
    --holder->second.num_requests;
    if (!request.answer.ok()) holder->second.lost = Lost(request.answer.status());
  }
  if (!request.answer.ok()) return;
  for (size_t i = 0; i < request.wanted.size(); ++i) {
    const PartsOfExtent& parts = request.wanted[i];
    const auto found = std::ranges::find_if(segments_, [&parts](const auto& entry) {
      return entry.second.extent.id == parts.extent_id;
    });
    if (found == segments_.end()) continue;  // its sequences have ended
    Segment& segment = found->second;
    for (size_t run = 0; run + 1 < parts.runs.size(); run += 2) {
      ClearParts(segment, parts.runs[run], parts.runs[run + 1]);
    }
    const uint32_t there_until = i < request.answer->size() ? (*request.answer)[i] : 0;
    if (there_until == kAllParts) {
      ClearAll(segment);
    } else if (there_until > segment.there_until) {
      ClearParts(segment, 0, there_until);
      segment.there_until = there_until;
    }
  }
}

absl::StatusOr<bool> PartialSegments::IsReady(uint64_t sequence_id) {
  const auto holder = holders_.find(sequence_id);
  if (holder == holders_.end()) return true;
  TakeAnswers();
  RETURN_IF_ERROR(holder->second.lost);
  return holder->second.num_requests == 0;
}

}  // namespace retroinfer
