// The way along the tokens of a prompt, from segment to block, over whatever holds their KV.
//
// While all before a position is exact, the next piece is
//
//   an exact segment of the request that begins there       found by its name
//   the exact block of the next 64 tokens                   found by its name, the next text name
//   an exact block of fewer tokens                          found as a child of the text name
//   generated KV that leaves the text there                 found as a child of the text name
//
// and behind generated KV only what follows just that: children of its name. The longest one is
// taken; of equally long ones a generated one before an exact one, so that a conversation goes on
// as it was held; then the one with the smallest name. Behind a block that is not full nothing can
// follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/hash/segment_name.h"
#include "common/kv/named_segment.h"

namespace retroinfer::kvstore {

// A segment or block of the served model, wherever it is.
struct RowCandidate {
  enum class Place { kArena, kInProgress, kDisk };

  Place place = Place::kArena;
  common::SegmentName name;
  common::Hash256 salt_hash;
  std::optional<common::Provenance> provenance;  // set: generated
  std::optional<uint64_t> token_begin;           // not known of one in progress
  uint32_t num_tokens = 0;
  // Empty: not known, so that names must do. Valid as long as the source does not change.
  std::span<const int32_t> token_ids;
  uint64_t extent_id = 0;  // kArena, kInProgress
};

// Where candidates are looked for.
class RowSource {
 public:
  virtual ~RowSource() = default;
  // The one of that name, or nothing.
  virtual std::optional<RowCandidate> Named(const common::SegmentName& name) const = 0;
  // What is found by its parent (IsFoundByParent()), the newest first; a bounded number.
  virtual std::vector<RowCandidate> Children(const common::SegmentName& parent) const = 0;
};

// Threads: one at a time.
// Cost:    of a whole walk: one name and one list of children for each 64 tokens, and a comparison
//          of token ids for each candidate.
class RowWalk {
 public:
  // REQUIRES: CheckRows(rows) is OK; all arguments outlive the object.
  RowWalk(const RowsWanted& rows, const std::optional<common::Hash256>& made_by,
          const RowSource& source);

  // Goes past the next piece and returns it; nothing at the end.
  std::optional<RowCandidate> Next();

  uint64_t num_tokens() const { return offset_; }  // of all pieces so far

 private:
  void ConsiderExact(std::optional<RowCandidate>* best);
  void ConsiderChildren(const common::SegmentName& parent, std::optional<RowCandidate>* best) const;
  // Keeps the better one, if the candidate holds the request's next tokens.
  void Consider(const RowCandidate& candidate, std::optional<RowCandidate>* best) const;
  // Whether it holds the tokens that are wanted here.
  bool Fits(const RowCandidate& candidate) const;
  // Text name of the position `num_tokens` behind this one.
  common::SegmentName TextBehind(uint32_t num_tokens) const;

  const RowsWanted& rows_;
  const std::optional<common::Hash256>& made_by_;
  const RowSource& source_;
  uint64_t offset_ = 0;      // from rows_.token_begin
  size_t next_segment_ = 0;  // of rows_.segments: the first one that may still begin
  bool ended_ = false;       // behind a block that is not full
  std::optional<common::SegmentName> generated_;  // of the piece before, if that is generated
};

// Returns the generated segment behind `parent` that does for `wanted`, which begins at
// `token_begin`; of several the one with the smallest name; or nothing. The wanted identity may be
// without token ids.
//
// REQUIRES: wanted.identity is set.
std::optional<RowCandidate> FindGenerated(const RowSource& source,
                                          const common::SegmentName& parent,
                                          const SegmentWanted& wanted, uint64_t token_begin,
                                          const common::Hash256& made_by);

// Returns the parent of generated KV that may hold segment `index` of a request; nothing if there
// can be none. `before`: what holds the segment before, by the name and provenance that it has.
struct HeldSegment {
  common::SegmentName name;
  bool is_generated = false;
};
std::optional<common::SegmentName> GeneratedParent(const ReserveRequest& request, size_t index,
                                                   const std::optional<HeldSegment>& before);

// Whether segment `index` may be held by what has just its name: an exact segment follows exact
// KV only.
bool MayBeFoundByName(const SegmentWanted& wanted, const std::optional<HeldSegment>& before);

}  // namespace retroinfer::kvstore
