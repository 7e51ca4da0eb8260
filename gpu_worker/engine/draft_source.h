// Where a draft is from.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace retroinfer {

enum class DraftSource : uint8_t { kPrompt, kPrediction, kAnswer, kModel };

inline constexpr size_t kNumDraftSources = 4;

// As metrics have it.
constexpr std::string_view DraftSourceName(DraftSource source) {
  switch (source) {
    case DraftSource::kPrompt:
      return "prompt";
    case DraftSource::kPrediction:
      return "prediction";
    case DraftSource::kAnswer:
      return "answer";
    case DraftSource::kModel:
      return "draft_model";
  }
  return "";
}

}  // namespace retroinfer
