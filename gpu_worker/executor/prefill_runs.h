// Plans which rows of a group's prompts are computed, and in which order, so that a beginning that
// several prompts share is read from the arena and computed once.
//
// Members whose prompts begin with the same cached tokens are a prefix group. The prompts of a
// prefix group are a tree: first the tokens that all have in common, then the tokens that some have
// in common, and so on. The rows are the tree in depth-first order. A prefix group has one buffer
// of KV, in which each token's KV lies at the token's position. So when a row is computed, the
// positions before the row hold the KV of the row's own prompt, and the positions after it hold KV
// of branches that are done. A prompt that shares with no other is a prefix group of one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu_worker/kv/sequence_kv.h"

namespace retroinfer {

struct RunMember {
  std::span<const int32_t> prompt;
  std::span<const CachedRun> cached = {};  // SequenceKv::cached
  int64_t begin = 0;                       // tokens [begin, end) of the prompt are planned
  int64_t end = 0;
  // Of a member that computes its sink alone (SequenceKv::reads_all): what is read for its policy.
  // Members for which the same is read are a prefix group, and of one run.
  std::span<const CachedRun> read_behind = {};
  // Whether the member may be in a prefix group with others: the whole prompt is planned, and
  // nobody wants all of its rows' results.
  bool may_share = false;
  // The rows of a unit (common/kv/query_units.h) go together, and the member is alone in its
  // prefix group: where others go other ways, a unit would be cut.
  bool is_sparse = false;
};

// How a part of a sequence's prompt is planned. `keeps_all_rows`: all rows' results are wanted.
RunMember RunMemberOf(const SequenceKv& sequence, std::span<const int32_t> prompt,
                      const PromptPart& part, bool keeps_all_rows);

// A cached run that is read before a run's rows: RunMember::cached[index] of each of `members`.
struct CachedRead {
  size_t index = 0;
  std::vector<size_t> members;
};

// Neighbouring rows, computed once for all members whose prompts have these tokens there.
struct PrefillRun {
  size_t prefix_group = 0;
  int64_t first_row = 0;  // in the group
  int64_t num_rows = 0;
  int64_t first_position = 0;        // in the prompts
  std::vector<CachedRead> reads;     // in the order of the text
  std::vector<size_t> members;       // numbers of RunMembers
  std::vector<size_t> ends_with_it;  // entries of `members` whose prompts end with the last row
  bool is_sparse = false;
};

struct PrefillRuns {
  std::vector<PrefillRun> runs;         // in the order of rows
  std::vector<size_t> prefix_group_of;  // by member
  size_t num_prefix_groups = 0;

  // The largest number of rows from `first_row` on, up to `rows`, that cuts no unit of a sparse
  // run; if there is none, the least above `rows`. No more than there are.
  int64_t WholeUnits(int64_t first_row, int64_t rows) const;
  // Rows of the group before `row` that are computed for the member.
  int64_t RowsBefore(int64_t row, size_t member) const;
};

// Returns the runs of a group: prefix groups in the order of their first members.
//
// REQUIRES: no member is empty; a member with cached tokens begins at 0 and has tokens behind the
//           cached ones.
// Cost:     tokens behind cached ones, times log(members).
PrefillRuns PlanRuns(std::span<const RunMember> members);

// Returns how many leading tokens two prompts have in common. Cost: O(result).
int64_t CommonTokens(std::span<const int32_t> a, std::span<const int32_t> b);

}  // namespace retroinfer
