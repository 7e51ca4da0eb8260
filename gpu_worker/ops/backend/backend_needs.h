// What a backend's operations need of memory: for plans that are made without the backend, on a
// machine that may have none. Each operation counts its working memory in one function, which the
// operation itself uses (Ops) and which is named here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "common/kv/dtype.h"
#include "gpu_worker/ops/model/weight_form.h"

namespace retroinfer {

struct BackendNeeds {
  DType activation_dtype;     // ModelOps
  bool uses_transient_slots;  // BlockCacheOps
  DType index_of_bf16;        // of centroids and value sums where KV is bf16 and nobody says
  size_t (*prefill_attention_scratch)(int64_t max_rows, int64_t max_tokens,
                                      int64_t num_query_heads);
  size_t (*decode_attention_scratch)(int32_t max_batch, int32_t num_query_heads, int32_t head_dim);
  size_t (*shared_page_attention_scratch)(int32_t max_batch, int32_t num_query_heads,
                                          int32_t head_dim);
  size_t (*estimate_scratch)(int32_t max_batch, int32_t num_query_heads, int32_t head_dim,
                             int64_t max_estimated);
  size_t (*cluster_keys_scratch)(uint32_t num_kv_heads, uint32_t head_dim, int32_t num_tokens,
                                 int32_t num_clusters);
  // Whether PrepareLinear takes weights of this form.
  bool (*has_weight_form)(const WeightForm& form);
  // Of a matrix of codes of this form, which it has, as PrepareLinear keeps it, without scales and
  // zeros; and of what is shared by all of them.
  size_t (*weight_bytes)(const WeightForm& form, int64_t in_features, int64_t out_features);
  size_t (*weight_scratch)(const WeightForm& form, int64_t in_features, int64_t out_features);
};

// What KvFormatNamed is given for an index called `index` beside such pages: "auto" is the
// backend's to choose.
inline std::string_view IndexNameFor(const BackendNeeds& needs, std::string_view pages,
                                     std::string_view index) {
  return index == "auto" && pages == DTypeName(DType::kBf16) ? DTypeName(needs.index_of_bf16)
                                                             : index;
}

}  // namespace retroinfer
