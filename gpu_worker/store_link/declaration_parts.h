// Cuts what a worker holds into messages of bounded size, for a store that does not know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <vector>

#include "common/kv/named_segment.h"
#include "gpu_worker/store_link/extent_ledger.h"
#include "retroinfer/kvstore/v1/kv_store.pb.h"

namespace retroinfer {

// Fills the message of a segment's identity.
void ToProto(const SegmentIdentity& identity, kvstore::v1::SegmentIdentity* proto);
// Fills in how it was generated; nothing of an exact one.
void ProvenanceToProto(const SegmentIdentity& identity, kvstore::v1::SegmentIdentity* proto);

// The parts in the order that DeclareSegments wants: segments that sequences reference, sequences,
// the other segments. There is at least one part; the last one says so.
//
// Threads: one.
// Owns:    nothing; the ledger must outlive it and stay as it is.
class DeclarationParts {
 public:
  // A part is complete when it has `part_bytes`; it is larger by at most one element.
  DeclarationParts(const ExtentLedger& ledger, size_t part_bytes);

  // Returns whether there is a part left, and fills `part` and `is_last` and what belongs to it.
  bool Next(kvstore::v1::DeclareSegmentsRequest* part);

  // Elements in all, and of the parts so far; for progress.
  size_t num_elements() const { return referenced_.size() + num_sequences_ + retained_.size(); }
  size_t num_done() const { return num_done_; }

 private:
  using Sequences = std::map<uint64_t, std::vector<LedgerExtent>>;

  // Adds the next element to `part`. Returns its size.
  size_t AddOne(kvstore::v1::DeclareSegmentsRequest* part);

  const size_t part_bytes_;
  const std::vector<const LedgerExtent*> referenced_;
  const std::vector<const LedgerExtent*> retained_;
  Sequences::const_iterator next_sequence_;
  const size_t num_sequences_;
  size_t num_done_ = 0;
  uint64_t next_part_ = 0;
  bool was_last_ = false;
};

}  // namespace retroinfer
