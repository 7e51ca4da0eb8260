// Saves dense blocks in the arena under names, so that later requests read them instead of
// computing the tokens again: what a prompt leaves that is in no segment, and what decode steps
// have added.
//
// The saver asks the store for extents, has the blocks copied beside the engine's work, and commits
// them when the copies are done. No request waits for that: if the arena is full, the store is
// away, or another sequence saves the same blocks, the blocks are not saved.
//
// Threads: the engine's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/extent.h"
#include "common/kv/named_segment.h"
#include "gpu_worker/engine/segment_store.h"
#include "gpu_worker/executor/step_command.h"
#include "gpu_worker/kv/kv_lineage.h"
#include "gpu_worker/kv/sequence_kv.h"

namespace retroinfer {

class BlockSaver {
 public:
  // The store outlives the saver. The functions copy blocks (kv/block_copier.h): they begin copies,
  // say whether those of a name are done, and forget a name.
  struct Parts {
    SegmentStore* store = nullptr;
    std::function<absl::Status(StepCommand::Save)> copy;
    std::function<absl::StatusOr<bool>(uint64_t)> is_copied;
    std::function<void(uint64_t)> end_copy;
  };
  struct Counters {
    uint64_t saved_blocks = 0;
    uint64_t unsaved_blocks = 0;  // arena full, no store, or an error
  };

  explicit BlockSaver(Parts parts);

  // Begins to save blocks of the sequence's window, in the name of `save_id`, a sequence of the
  // store of its own. Until IsSaving() is false, the sequence keeps its blocks, and what they hold
  // of the named tokens. `answer` gets the store's answer, on any thread, for TakeAnswer().
  void Save(const SequenceKv& sequence, uint64_t save_id, std::vector<NamedBlock> blocks,
            SegmentStore::ReserveCallback answer);
  // Takes the store's answer. Returns whether `save_id` was one of Save().
  bool TakeAnswer(uint64_t save_id, const absl::StatusOr<std::vector<Extent>>& extents);
  // Commits what has been copied. Returns how many saves have ended.
  size_t Tend();

  bool IsSaving(uint64_t sequence_id) const;
  bool busy() const { return !saves_.empty(); }
  const Counters& counters() const { return counters_; }

 private:
  struct SaveUnderWay {
    uint64_t sequence_id = 0;
    uint64_t save_id = 0;
    std::vector<NamedBlock> blocks;
    std::vector<CommittedSegment> segments;  // to commit when they are copied
    bool is_begun = false;                   // copies are under way: the store has answered
  };

  absl::Status CopyOut(SaveUnderWay& save, std::span<const Extent> extents);
  // The save has ended, with `num_saved` blocks of its own.
  void End(std::list<SaveUnderWay>::iterator save, size_t num_saved);

  const Parts parts_;
  std::list<SaveUnderWay> saves_;
  Counters counters_;
};

}  // namespace retroinfer
