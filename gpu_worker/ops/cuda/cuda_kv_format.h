// The KV formats of this backend.
#pragma once

#include "gpu_worker/ops/kv_format_check.h"

namespace retroinfer::cuda {

inline constexpr DType kTokenTypes[] = {DType::kF32, DType::kBf16};
inline constexpr DType kIndexTypes[] = {DType::kF32, DType::kBf16};
inline constexpr KvElementTypes kKvElementTypes{
    .backend = "cuda", .tokens = kTokenTypes, .centroids = kIndexTypes, .page_bytes = kPageBytes};

}  // namespace retroinfer::cuda
