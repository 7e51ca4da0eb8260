// Rotary position embedding as config.json asks for it, and the frequencies that follow.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/json/json_reader.h"

namespace retroinfer {

inline constexpr double kMaxRopeFactor = 1e4;
inline constexpr double kDefaultRopeTheta = 10000;  // of most families

// What RoPE of a family may be beside what it is in all.
struct RopeOfFamily {
  double theta = kDefaultRopeTheta;  // where none is named
  bool may_be_partial = false;       // partial_rotary_factor
  bool may_grow = false;             // llama_4_scaling_beta
  bool is_long = false;              // its scaling is LongRoPE, also where it is called su or yarn
};

struct RopeConfig {
  enum class Type : uint32_t {
    kDefault = 0,  // Su et al. 2021
    kLinear = 1,   // position interpolation, Chen et al. 2023
    kLlama3 = 2,   // Llama 3.1: long wavelengths are stretched, short ones kept
    kYarn = 3,     // Peng et al. 2023
    kLong = 4,     // Ding et al. 2024: each pair of dimensions has a factor of its own
  };
  Type type = Type::kDefault;
  double theta = kDefaultRopeTheta;
  double factor = 1;               // linear, llama3, yarn
  double low_freq_factor = 1;      // llama3
  double high_freq_factor = 4;     // llama3
  int64_t original_positions = 0;  // llama3, yarn, long: context length before scaling, tokens
  double beta_fast = 32;           // yarn
  double beta_slow = 1;            // yarn
  bool truncate = true;            // yarn: whole dimensions as limits of the ramp
  double attention_factor = 1;     // scales cos and sin; other than 1 for yarn and long only
  // Of each pair, long: up to original_positions, and for contexts beyond. A served model has one
  // of the two for all its contexts.
  std::vector<double> short_factors;
  std::vector<double> long_factors;
  bool serves_long = false;
  double rotated_part = 1;  // of a head's numbers, the first ones
  // Queries grow by 1 + query_growth * log(1 + floor(position / original_positions)).
  double query_growth = 0;

  // Tokens of context that the embedding is made for, if config.json names `max_positions`.
  int64_t ContextLength(int64_t max_positions) const;
  // Numbers of a head that are rotated.
  uint32_t RotatedDims(uint32_t head_dim) const {
    return static_cast<uint32_t>(head_dim * rotated_part);
  }
  // inv_freq[i] of dimension pair i; RotatedDims(head_dim) / 2 values. As Hugging Face transformers
  // computes it.
  std::vector<float> InverseFrequencies(uint32_t head_dim) const;

  friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

// YaRN with what its settings are where nothing else is said.
RopeConfig YarnRope(double theta, double factor, int64_t original_positions);

// Of a model whose layers are of two types, each with a RoPE of its own (Gemma 3).
struct LayerTypeRopes {
  RopeConfig full;     // of layers that see all tokens
  RopeConfig sliding;  // of those that see a window
};

// Reads objects "full_attention" and "sliding_attention" of `rope_parameters` (transformers 5), or
// `rope_theta`, `rope_scaling` and `rope_local_base_freq` (before), of which the scaling is that of
// full attention. A theta that is not named is that of `defaults`.
//
// Returns: as ReadRopeConfig.
absl::StatusOr<LayerTypeRopes> ReadLayerTypeRopes(const common::JsonReader& config,
                                                  int64_t max_positions,
                                                  const LayerTypeRopes& defaults);

// Reads `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before). Settings
// that only name a theta, or nothing, are plain RoPE, as in transformers 5. LongRoPE serves
// contexts of `max_positions`, first.
//
// Returns: INVALID_ARGUMENT for wrong values and if both forms are there and mean different things;
//          UNIMPLEMENTED, with what is supported, for another type, and for a partial rotation or
//          queries that grow with their positions where `family` has no such.
absl::StatusOr<RopeConfig> ReadRopeConfig(const common::JsonReader& config, int64_t max_positions,
                                          const RopeOfFamily& family = {});

}  // namespace retroinfer
