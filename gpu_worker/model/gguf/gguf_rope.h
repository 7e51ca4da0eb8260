// RoPE as the keys and factors of a GGUF file ask for it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "gpu_worker/model/gguf/gguf_files.h"
#include "gpu_worker/model/rope_config.h"

namespace retroinfer {

// `prefix` is the architecture with a point ("llama.").
//
// Returns: INVALID_ARGUMENT for wrong values; UNIMPLEMENTED, with what is supported, for another
//          scaling or a partial rotation.
absl::StatusOr<RopeConfig> ReadGgufRope(const GgufFiles& files, const std::string& prefix,
                                        int64_t max_positions, uint32_t head_dim);

}  // namespace retroinfer
