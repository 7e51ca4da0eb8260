// Working memory of the CPU backend's decode attention.
#pragma once

#include <cstddef>
#include <cstdint>

namespace retroinfer::cpu {

// Parts into which the tokens of a sequence and KV head are divided, at most.
inline constexpr int64_t kMaxDensePartsOfHead = 32;
inline constexpr int64_t kMaxPagePartsOfHead = 32;
inline constexpr int64_t kMaxPartsOfHead = kMaxDensePartsOfHead + kMaxPagePartsOfHead;

// Of the table of tasks: where those of each sequence and KV head begin.
constexpr size_t TaskTableBytes(int64_t sequence_heads) {
  constexpr size_t kAlignment = 64;
  const size_t bytes = static_cast<size_t>(sequence_heads + 1) * sizeof(int64_t);
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// The table, and a partial result of each part and query head: maximum, sum, and a head.
constexpr size_t DecodeAttentionScratchBytes(int32_t max_batch, int32_t num_query_heads,
                                             int32_t head_dim) {
  const int64_t queries = int64_t{max_batch} * num_query_heads;
  return TaskTableBytes(queries) +
         static_cast<size_t>(queries * kMaxPartsOfHead * (2 + head_dim)) * sizeof(float);
}

}  // namespace retroinfer::cpu
