// What a synthetic context is made of, on the host: vectors that keys and values are drawn from,
// which of them each token has, and queries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "common/kv/kv_geometry.h"
#include "gpu_worker/measuring/synthetic/recorded_reuse.h"

namespace retroinfer {

struct SyntheticShape {
  KvGeometry geometry;
  int32_t num_query_heads = 0;
  int64_t max_tokens = 0;      // of a context
  int64_t context_tokens = 0;  // of the contexts that queries are made for; 0: max_tokens
  // Nothing: what queries ask for comes again as it was recorded (recorded_reuse.h). Otherwise the
  // cosine between a head's queries of two steps: for stress.
  std::optional<double> overlap;
  RecordedModel reuse = RecordedModel::kCode;  // without an overlap: whose steps are repeated
  // How much a step retrieves, as SelectionRatios: queries are made for that.
  double retrieval_ratio = 0.018;
  int32_t min_retrieved = 64;
  uint64_t seed = 1;
};

struct SyntheticSizes {
  size_t num_rows = 0;        // of the table
  size_t num_ids = 0;         // [tokens, kv_heads]; values are those of the token behind the key's
  size_t num_query_sets = 0;  // layers that have queries of their own
  int64_t layer_shift = 0;    // tokens between the beginnings of two layers
};
inline constexpr size_t kQueriesOfSet = 1024;  // of as many steps
// Tokens behind the context that have keys of their own; later ones have theirs again.
inline constexpr size_t kGeneratedTokens = 1024;

struct SyntheticTables {
  std::vector<uint16_t> rows;     // [num_rows, head_dim] bf16
  std::vector<int32_t> ids;       // [tokens, kv_heads]
  std::vector<uint16_t> queries;  // [num_query_sets * kQueriesOfSet, query_heads * head_dim] bf16
  // Of cell_tables.h: what they ask for, [num_query_sets * kQueriesOfSet, kv_heads, cells_of_step].
  std::vector<uint32_t> cells;
  // Of cell_tables.h: keys of generated tokens, [kGeneratedTokens, kv_heads * head_dim] bf16.
  // Empty: they have the model's.
  std::vector<uint16_t> generated;
};

inline uint16_t Bf16Bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

}  // namespace retroinfer
