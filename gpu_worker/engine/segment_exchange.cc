#include "gpu_worker/engine/segment_exchange.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "gpu_worker/engine/segment_claim.h"

namespace retroinfer {

SegmentExchange::SegmentExchange(SegmentStore& store, std::shared_ptr<Inbox> inbox,
                                 std::unique_ptr<BlockSaver> saver, const KvGeometry& geometry,
                                 EngineStats& counters)
    : store_(store),
      inbox_(std::move(inbox)),
      saver_(std::move(saver)),
      geometry_(geometry),
      counters_(counters) {}

void SegmentExchange::Ask(ReserveRequest request, uint64_t id) {
  store_.Reserve(std::move(request),
                 [inbox = inbox_, id](absl::StatusOr<std::vector<Extent>> extents) {
                   inbox->Answer({id, std::move(extents)});
                 });
}

bool SegmentExchange::AskForExtents(LiveRequest& live) {
  std::optional<ReserveRequest> request = ClaimSegments(live.sequence->kv, live.need);
  if (!request.has_value()) return false;
  request->takes_partial = TakesPartial(live);
  live.asked_store = true;
  live.releases_when_asked = num_releases_;
  Ask(*std::move(request), live.sequence->id());
  return true;
}

// Only the end of a prompt that attends by the index can do without pages. A limit on the unseen
// mass follows what steps tell, also those that lack pages.
bool SegmentExchange::TakesPartial(const LiveRequest& live) const {
  const SequenceKv& kv = live.sequence->kv;
  return store_.serves_parts() && kv.given_tokens > 0 && kv.settings.max_unseen_mass == 0 &&
         !live.wants_whole;
}

// Where the rest of the prompt's head is computed, all before it is read exactly.
bool SegmentExchange::AsksForWhole(LiveRequest& live) {
  const SequenceKv& kv = live.sequence->kv;
  const bool has_partial =
      std::ranges::any_of(kv.extents, [](const Extent& extent) { return extent.part_bytes != 0; });
  if (!live.failure.ok() || !has_partial || kv.reads_all()) return false;
  live.wants_whole = true;
  ReleaseRows(live);
  store_.Release(kv.sequence_id);
  ++num_releases_;
  return AskForExtents(live);
}

bool SegmentExchange::AskForRows(LiveRequest& live) {
  if (live.sequence->measures_prompt()) return false;
  std::optional<ReserveRequest> request = ClaimRows(live.sequence->kv, next_claim_id_);
  if (!request.has_value()) return false;
  live.rows_id = next_claim_id_++;
  Ask(*std::move(request), live.rows_id);
  return true;
}

void SegmentExchange::AskForGrowth(LiveRequest& live, std::span<const uint32_t> segment_tokens) {
  live.growth_id = next_claim_id_++;
  live.releases_at_growth = num_releases_;
  ReserveRequest request{.sequence_id = live.growth_id};
  for (const uint32_t tokens : segment_tokens) {
    request.segments.emplace_back().num_tokens = tokens;
  }
  Ask(std::move(request), live.growth_id);
}

void SegmentExchange::TakeAnswer(ReserveAnswer answer, const LiveRequests& all) {
  if (saver_ != nullptr && saver_->TakeAnswer(answer.sequence_id, answer.extents)) return;
  const auto found = std::find_if(all.begin(), all.end(), [&answer](const auto& one) {
    return one->sequence->id() == answer.sequence_id || one->rows_id == answer.sequence_id ||
           one->growth_id == answer.sequence_id;
  });
  LiveRequest* const live = found == all.end() ? nullptr : found->get();
  if (live != nullptr && live->growth_id == answer.sequence_id) {
    live->growth_answer = std::move(answer.extents);
    return;
  }
  if (live == nullptr || live->phase != RequestPhase::kReserving) return;
  SequenceKv& kv = live->sequence->kv;
  const uint32_t arena_pages = store_.arena_pages();
  if (live->rows_id == answer.sequence_id) {
    // Without rows of others the prompt's rows are computed: that is no failure.
    live->answer = StoreAnswer::kGranted;
    if (answer.extents.ok()) {
      live->failure = TakeRows(*answer.extents, arena_pages, geometry_, kv);
    }
    if (AsksForWhole(*live)) live->answer = StoreAnswer::kNone;
  } else if (answer.extents.ok()) {
    live->failure = TakeExtents(*std::move(answer.extents), arena_pages, kv);
    if (live->failure.ok() && (AskForRows(*live) || AsksForWhole(*live))) return;
    live->answer = StoreAnswer::kGranted;
  } else if (absl::IsResourceExhausted(answer.extents.status())) {
    live->answer = StoreAnswer::kArenaFull;
    live->arena_error = answer.extents.status();
    ++counters_.allocation_failures;
  } else {
    live->failure = answer.extents.status();
  }
}

bool SegmentExchange::MayFreePages(const LiveRequest& live, const LiveRequests& all) const {
  return AnyReleasedSince(live) || (saver_ != nullptr && saver_->busy()) ||
         std::any_of(all.begin(), all.end(), [&live](const auto& other) {
           return other.get() != &live && (other->asked_store || other->rows_id != 0);
         });
}

void SegmentExchange::Save(LiveRequest& live, int64_t end) {
  const SequenceKv& kv = live.sequence->kv;
  if (saver_ == nullptr || !kv.lineage.names_any() || kv.dense_blocks.empty()) return;
  if (!store_.attached() || store_.memory_taken()) return;
  // A window that has moved on since the last call holds none of the blocks that were saved then.
  if (live.saved_begin != kv.window_begin) live.saved_end = kv.window_begin;
  live.saved_begin = kv.window_begin;
  size_t num_segments = 0;
  for (int64_t at = kSinkTokens; at < kv.window_begin; ++num_segments) {
    at += kv.extents[num_segments].num_tokens;
  }
  std::vector<NamedBlock> blocks =
      kv.lineage.Blocks(num_segments, kv.extents, kv.window_begin, end, live.saved_end);
  if (blocks.empty()) return;
  live.saved_end = std::max(live.saved_end, end);
  const uint64_t id = next_claim_id_++;
  saver_->Save(kv, id, std::move(blocks),
               [inbox = inbox_, id](absl::StatusOr<std::vector<Extent>> extents) {
                 inbox->Answer({id, std::move(extents)});
               });
}

void SegmentExchange::SaveAtEnd(LiveRequest& live) {
  // Only then all of its KV is in its blocks: earlier some is not computed, and a suspended
  // request's is elsewhere.
  const bool is_resident =
      live.phase == RequestPhase::kDecoding || live.phase == RequestPhase::kSettling;
  if (!live.has_first_token() || !is_resident || live.sequence->PromptRowsLeft() > 0) return;
  const SequenceKv& kv = live.sequence->kv;
  // A step may have made KV of tokens behind the one that ended the request, which have no names.
  const int64_t end = kv.drawn_begin() + std::max<int64_t>(1, live.num_generated) - 1;
  const int64_t tokens = std::max(std::min(kv.num_tokens, end), kv.prompt_tokens);
  const bool names_generated = kv.lineage.made_by().has_value();
  Save(live, names_generated ? tokens : kv.prompt_tokens);
}

void SegmentExchange::Tend() {
  if (saver_ != nullptr) num_releases_ += saver_->Tend();
}

void SegmentExchange::ReleaseRows(LiveRequest& live) {
  if (live.rows_id == 0) return;
  store_.Release(live.rows_id);
  ++num_releases_;
  live.rows_id = 0;
}

void SegmentExchange::Release(LiveRequest& live) {
  if (live.asked_store) {
    store_.Release(live.sequence->id());
    ++num_releases_;
    live.asked_store = false;
  }
  for (const SequenceKv::Growth& growth : live.sequence->kv.growths) {
    store_.Release(growth.holder);
    ++num_releases_;
  }
  live.sequence->kv.growths.clear();
  if (live.growth_id != 0) store_.Release(std::exchange(live.growth_id, 0));
  ReleaseRows(live);
}

}  // namespace retroinfer
