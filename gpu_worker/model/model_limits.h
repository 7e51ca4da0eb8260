// What a model may be at most, whatever says so: a config.json or the keys of a GGUF file.
#pragma once

#include <cstddef>
#include <cstdint>

namespace retroinfer {

inline constexpr int64_t kMaxHidden = int64_t{1} << 16;
inline constexpr int64_t kMaxIntermediate = int64_t{1} << 20;
inline constexpr int64_t kMaxLayers = 1024;
inline constexpr int64_t kMaxExperts = 256;
inline constexpr int64_t kMaxExpertsPerToken = 16;
inline constexpr int64_t kMaxHeads = 1024;
inline constexpr uint32_t kMaxGroupSize = 16;
inline constexpr size_t kMaxEosTokens = 64;
inline constexpr double kMaxRopeTheta = 1e15;

}  // namespace retroinfer
