// Which blocks and segments a held sequence needs, as its policy says.
//
// Threads: the executor's.
#pragma once

#include <cstdint>
#include <iterator>

#include "gpu_worker/executor/held_sequence.h"
#include "gpu_worker/kv/sequence_kv.h"

namespace retroinfer {

// A decorated policy lengthens a sequence by tokens that are in no prompt; what a policy needs is
// asked in terms of the request.
inline KvGrowth GrowthOf(const HeldSequence& held, int64_t from, int64_t to) {
  const SequenceKv& kv = held.sequence.kv;
  const int64_t more = kv.prompt_tokens - std::ssize(kv.prompt);
  return {.prompt_tokens = std::ssize(kv.prompt),
          .total_tokens = kv.total_tokens - more,
          .from = from - more,
          .to = to - more};
}

inline KvBlocks BlocksFor(const HeldSequence& held, int64_t from, int64_t to) {
  const Sequence& sequence = held.sequence;
  return sequence.policy->NeedWhile(sequence.kv.settings, GrowthOf(held, from, to));
}

inline KvNeed NeedOf(const HeldSequence& held, int64_t total_tokens) {
  const KvGrowth growth = GrowthOf(held, 0, 0);
  const SequenceKv& kv = held.sequence.kv;
  const int64_t more = kv.total_tokens - growth.total_tokens;
  return held.sequence.policy->Need(kv.settings, growth.prompt_tokens, total_tokens - more);
}

inline bool Suffices(const KvBlocks& held, const KvBlocks& needed) {
  return held.dense >= needed.dense && held.meta >= needed.meta;
}

inline KvBlocks Held(const SequenceKv& kv) {
  return {.dense = static_cast<int32_t>(kv.dense_blocks.size()),
          .meta = static_cast<int32_t>(kv.meta_blocks.size())};
}

}  // namespace retroinfer
