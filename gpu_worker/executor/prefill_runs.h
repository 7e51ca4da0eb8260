// What of a group's prompts is computed, and in which order, so that a beginning that several of
// them share is read from the arena and computed once.
//
// Members whose prompts begin with the same cached tokens are a family. Its prompts are a tree:
// what all of them have in common, then what some of them have, and so on. The tree is gone through
// depth first, and the KV of each token lies at its position in the text, in one place for the
// whole family: when rows at a position are computed, everything before them is their own prompt's,
// and what lies behind them is of branches that are done. A prompt without company is a family of
// its own.
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
  int64_t begin = 0;                       // tokens [begin, end) of the prompt are read now
  int64_t end = 0;
  bool may_share = false;  // all of its prompt is read now, and its rows are nobody's but its own
};

// Cached tokens that are read before a run's rows: their number in RunMember::cached of `members`.
struct CachedRead {
  size_t index = 0;
  std::vector<size_t> members;
};

// Neighbouring rows, computed for all prompts that have these tokens there.
struct PrefillRun {
  size_t family = 0;
  int64_t first_row = 0;  // in the group
  int64_t num_rows = 0;
  int64_t first_position = 0;        // in the prompts
  std::vector<CachedRead> reads;     // in the order of the text
  std::vector<size_t> members;       // numbers of RunMembers
  std::vector<size_t> ends_with_it;  // of those, the ones whose tokens end with the last row
};

struct PrefillRuns {
  std::vector<PrefillRun> runs;   // in the order of rows
  std::vector<size_t> family_of;  // by member
  size_t num_families = 0;
};

// Returns the runs of a group: families in the order of their first members.
//
// REQUIRES: no member is empty; one with cached tokens begins at 0 and has tokens behind them.
// Cost:     tokens behind cached ones, times log(members).
PrefillRuns PlanRuns(std::span<const RunMember> members);

// How many leading tokens two prompts have in common. Cost: their number.
int64_t CommonTokens(std::span<const int32_t> a, std::span<const int32_t> b);

}  // namespace retroinfer
