// How much of a context a server retrieves when nobody says how much: two settings, whose bytes and
// accuracy are known (decision 0061).
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "common/kv/kv_format.h"

namespace retroinfer {

enum class RetrievalQuality { kStandard, kHigh };

struct RetrievalShare {
  double ratio = 0;           // of a sequence's clusters, in [0, 1]; with codes of its tokens
  int32_t min_retrieved = 0;  // clusters, where there are so many; with codes 16 tokens each
  float radius_weight = 0;    // WaveIndexSettings::radius_weight
  // With codes, as of WaveIndexSettings.
  double candidate_ratio = 0;
  int32_t min_candidates = 0;
};

// The quality that --quality calls `name`; nothing if there is none.
constexpr std::optional<RetrievalQuality> RetrievalQualityNamed(std::string_view name) {
  if (name == "standard") return RetrievalQuality::kStandard;
  if (name == "high") return RetrievalQuality::kHigh;
  return std::nullopt;
}

// What is retrieved of a context that is stored in `format`. The standard of 8 bits reads no more
// bytes a step than that of bf16, high at most twice as many: what a format saves buys clusters,
// which make up for what a smaller weight of the radius loses (decision 0057). Codes of tokens
// choose pages instead of clusters, at fewer bytes than those (decision 0085).
constexpr RetrievalShare RetrievalFor(RetrievalQuality quality, const KvFormat& format) {
  const bool is_high = quality == RetrievalQuality::kHigh;
  if (format.token_code_bits != 0) {
    return is_high ? RetrievalShare{0.06, 160, 0.25f, 0.25, 512}
                   : RetrievalShare{0.024, 64, 0.25f, 0.12, 256};
  }
  if (format.centroid.element != DType::kInt8) {
    return is_high ? RetrievalShare{0.054, 192, 0.5f} : RetrievalShare{0.018, 64, 0.5f};
  }
  if (!is_high) return {0.035, 96, 0.25f};
  if (format.token.element != DType::kInt8) return {0.08, 220, 0.25f};
  return {0.16, 420, 0.25f};
}

}  // namespace retroinfer
