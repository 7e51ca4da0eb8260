// The KV formats of this backend.
#pragma once

#include "gpu_worker/ops/kv_format_check.h"

namespace retroinfer::cpu {

inline constexpr VectorFormat kTokenTypes[] = {
    {.element = DType::kF32}, {.element = DType::kBf16}, {.element = DType::kF16}, kEightBitTokens};
inline constexpr VectorFormat kIndexTypes[] = {
    {.element = DType::kF32}, {.element = DType::kBf16}, kInt8Vectors};
inline constexpr KvElementTypes kKvElementTypes{
    .backend = "cpu", .tokens = kTokenTypes, .index = kIndexTypes};

}  // namespace retroinfer::cpu
