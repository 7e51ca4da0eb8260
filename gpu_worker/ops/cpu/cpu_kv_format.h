// The KV formats of this backend.
#pragma once

#include "gpu_worker/ops/kv_format_check.h"

namespace retroinfer::cpu {

inline constexpr DType kTokenTypes[] = {DType::kF32, DType::kBf16, DType::kF16};
inline constexpr DType kIndexTypes[] = {DType::kF32, DType::kBf16};
inline constexpr KvElementTypes kKvElementTypes{
    .backend = "cpu", .tokens = kTokenTypes, .centroids = kIndexTypes};

}  // namespace retroinfer::cpu
