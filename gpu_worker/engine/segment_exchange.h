// Exchanges KV between requests and the segment store: extents for a request's segments, KV of
// earlier requests that a prompt reads, and blocks that a request leaves to later requests.
//
// The store answers through the inbox. A request's names in the store are the sequence's, for its
// extents; rows_id, for what else its prompt reads; and one for each time that its answer has
// grown.
//
// Threads: the engine's thread.
// Owns:    the saver. Store and inbox outlive the exchange, and so do the counters.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "common/kv/kv_geometry.h"
#include "gpu_worker/engine/block_saver.h"
#include "gpu_worker/engine/engine.h"
#include "gpu_worker/engine/inbox.h"
#include "gpu_worker/engine/live_request.h"
#include "gpu_worker/engine/segment_store.h"

namespace retroinfer {

class SegmentExchange {
 public:
  // `saver` null: requests share nothing. Counts EngineStats::allocation_failures.
  SegmentExchange(SegmentStore& store, std::shared_ptr<Inbox> inbox,
                  std::unique_ptr<BlockSaver> saver, const KvGeometry& geometry,
                  EngineStats& counters);

  // Asks for the extents of all that the request may ever index. Returns whether any are needed,
  // and so whether an answer comes.
  bool AskForExtents(LiveRequest& live);
  // Asks for KV of the prompt that is in no segment whose index the request can share. Returns
  // whether there may be any, and so whether an answer comes.
  bool AskForRows(LiveRequest& live);
  // Asks for extents for further segments of so many tokens each, in a name of their own; the
  // answer comes into LiveRequest::growth_answer.
  void AskForGrowth(LiveRequest& live, std::span<const uint32_t> segment_tokens);
  // Whether any request has released extents or rows since AskForGrowth().
  bool AnyReleasedSinceGrowth(const LiveRequest& live) const {
    return live.releases_at_growth != num_releases_;
  }
  // Notes the store's answer in the request that asked; the next plan acts on it.
  void TakeAnswer(ReserveAnswer answer, const LiveRequests& live);

  // After StoreAnswer::kArenaFull: whether waiting may help the request, because others hold
  // extents, or have released extents since it asked.
  bool MayFreePages(const LiveRequest& live, const LiveRequests& all) const;
  // Whether any request has released extents or rows since the request asked.
  bool AnyReleasedSince(const LiveRequest& live) const {
    return live.releases_when_asked != num_releases_;
  }

  // Saves what the request's window holds of tokens up to `end`, as far as the tokens have names
  // and are not saved yet.
  void Save(LiveRequest& live, int64_t end);
  // The same of all that a request leaves whose prompt is computed and that ends.
  void SaveAtEnd(LiveRequest& live);
  // Whether the sequence's blocks are being saved, and so must stay as they are.
  bool IsSaving(uint64_t sequence_id) const {
    return saver_ != nullptr && saver_->IsSaving(sequence_id);
  }
  // Commits what has been saved.
  void Tend();

  // Releases the rows that the prompt reads; or all that the request holds in the arena.
  void ReleaseRows(LiveRequest& live);
  void Release(LiveRequest& live);

 private:
  void Ask(ReserveRequest request, uint64_t id);
  bool TakesPartial(const LiveRequest& live) const;
  // Gives partial segments back and asks for whole ones, where the request cannot do without.
  // Returns whether it does.
  bool AsksForWhole(LiveRequest& live);

  SegmentStore& store_;
  const std::shared_ptr<Inbox> inbox_;  // shared with answers that come after the engine's end
  const std::unique_ptr<BlockSaver> saver_;
  const KvGeometry geometry_;
  EngineStats& counters_;
  // Names of claims on rows and of saves. Those of sequences begin at 1: a scheduler elsewhere that
  // is told the same requests gives them the same ones, whatever was saved meanwhile.
  uint64_t next_claim_id_ = uint64_t{1} << 62;
  uint64_t num_releases_ = 0;
};

}  // namespace retroinfer
