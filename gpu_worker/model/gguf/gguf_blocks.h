// The types that tensors of a GGUF file have, and the numbers that their blocks stand for.
//
// A row of a tensor is cut into blocks of `elements` numbers. Those of the quantised types hold
// codes of a few bits and what scales them, in the layouts of ggml, the library of which GGUF is
// the file format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "gpu_worker/ops/model/weight_type.h"

namespace retroinfer {

inline constexpr size_t kGgufBlockElementsMax = 256;

struct GgufBlocks {
  uint32_t id;  // as files have it
  std::string_view name;
  size_t elements;  // of a block
  size_t bytes;
  std::optional<WeightType> plain;  // of F32, F16 and BF16: numbers that need no decoding
  // Writes the `elements` numbers of a block of `bytes`, which needs no alignment.
  void (*decode)(const std::byte* block, float* out);
};

// Threads: any.
// Returns: UNIMPLEMENTED for a type that is known and not supported, with its name and what to do;
//          INVALID_ARGUMENT for a number that is none.
absl::StatusOr<const GgufBlocks*> GgufBlocksOf(uint32_t id);

// Names of what is supported, for messages.
std::string SupportedGgufTypes();

}  // namespace retroinfer
