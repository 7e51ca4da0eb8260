// The KV formats of this backend.
#pragma once

#include "gpu_worker/ops/kv_format_check.h"

namespace retroinfer::cuda {

inline constexpr VectorFormat kTokenTypes[] = {
    {.element = DType::kF32}, {.element = DType::kBf16}, kEightBitTokens};
inline constexpr VectorFormat kIndexTypes[] = {
    {.element = DType::kF32}, {.element = DType::kBf16}, kInt8Vectors};
inline constexpr KvElementTypes kKvElementTypes{
    .backend = "cuda", .tokens = kTokenTypes, .index = kIndexTypes, .page_bytes = kPageBytes};

}  // namespace retroinfer::cuda
