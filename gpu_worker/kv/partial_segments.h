// Segments of sequences that the store still reads from the disk: which of their pages are not in
// the arena, who waits for some, and how they are asked for.
//
// A step finds out what it needs by coming to it: look-ups list the absent pages, the rows are fed
// again when these are there. A row that lacks pages goes on through the layers without them, so
// that what it asks for there is close to what it will need; each further step is right for one
// layer more at least, in practice for nearly all.
//
// Threads: the engine's; answers of the store may come on any thread.
// Owns:    the account; the marks belong to the block cache.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/kv/extent.h"
#include "common/kv/kv_geometry.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/wave_buffer/absent_pages.h"

namespace retroinfer {

class PartialSegments {
 public:
  // For each of the wanted, how many parts from the first one on are there besides; kAllParts: all.
  using Answer = absl::StatusOr<std::vector<uint32_t>>;
  // Asks the store for parts, and tells when they are there. Must not block.
  using Fetch =
      std::function<void(std::vector<PartsOfExtent> wanted, std::function<void(Answer)> done)>;

  // `absent`, `stream` (compute) outlive the object. `geometry`: of the arena.
  PartialSegments(AbsentPages* absent, Stream* stream, const KvGeometry& geometry, Fetch fetch);

  // The sequence holds these extents from now on. Pages of those that are partial are absent until
  // the store has told that they are there.
  void Claim(uint64_t sequence_id, std::span<const Extent> extents);
  // The sequence has ended.
  void LetGo(uint64_t sequence_id);

  // Behind a step: asks for what its rows lacked, which are of these sequences. REQUIRES: the
  // stream has passed the step.
  absl::Status AskFor(std::vector<uint64_t> lacking);
  // Whether what was asked for the sequence is there.
  // Returns: UNAVAILABLE if it does not come: the sequence has to end.
  absl::StatusOr<bool> IsReady(uint64_t sequence_id);

 private:
  struct Segment {
    Extent extent;
    uint32_t users = 0;
    uint32_t there_until = 0;  // parts
  };
  struct Holder {
    absl::flat_hash_map<uint64_t, PageId> segments;  // their first pages, by extent
    uint32_t num_requests = 0;                       // under way
    absl::Status lost;
  };
  struct Request {
    std::vector<uint64_t> sequences;
    std::vector<PartsOfExtent> wanted;
    Answer answer;
  };
  // What answers are put into; it may outlive the object.
  struct Mailbox {
    absl::Mutex mutex;
    std::vector<Request> answered ABSL_GUARDED_BY(mutex);
  };

  // Splits what is wanted into calls: what a sequence lacks is in one call, that of another text in
  // another, because all who are in a call share its fate.
  std::vector<Request> Split(std::span<const uint64_t> lacking,
                             std::vector<PartsOfExtent> wanted) const;
  bool Holds(uint64_t sequence_id, uint64_t extent_id) const;
  const Segment* Holding(PageId page) const;
  // What holds these pages, in order.
  std::vector<PartsOfExtent> PartsOf(std::vector<PageId> pages);
  void TakeAnswers();
  void Take(const Request& request);
  void ClearParts(const Segment& segment, uint32_t first, uint32_t count);
  void ClearAll(Segment& segment);

  AbsentPages& absent_;
  Stream& stream_;
  const KvGeometry geometry_;
  const Fetch fetch_;
  absl::btree_map<PageId, Segment> segments_;      // by first page
  absl::flat_hash_map<uint64_t, Holder> holders_;  // by sequence
  std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
};

}  // namespace retroinfer
