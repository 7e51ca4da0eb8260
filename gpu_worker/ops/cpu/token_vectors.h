// Keys and values of one token between what pages hold and plain numbers.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/kv/kv_format.h"

namespace retroinfer::cpu {

// The three below have code for formats without scales and for kEightBitTokens; head_dim is one
// of kHeadDims.

// Writes `numbers` [head_dim] as a page holds them, rounded.
void StoreToken(const float* numbers, const VectorFormat& format, uint32_t head_dim,
                std::byte* stored);

// Writes a row of a prompt's KV (the KvFormat's `prompt`, which holds what pages do) as a page
// holds it; and the reverse. Nothing is rounded: one after the other gives the same bytes.
void PackToken(const std::byte* row, const VectorFormat& format, uint32_t head_dim,
               std::byte* stored);
void UnpackToken(const std::byte* stored, const VectorFormat& format, uint32_t head_dim,
                 std::byte* row);

}  // namespace retroinfer::cpu
