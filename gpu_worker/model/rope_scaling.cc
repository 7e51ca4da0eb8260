#include "gpu_worker/model/rope_scaling.h"

#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/config/token_count.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

struct Scaling {
  double factor = 1;
  int64_t original_positions = 0;  // 0: not given
};

absl::Status Refuse(std::string_view text, std::string_view problem) {
  return absl::InvalidArgumentError(
      absl::StrCat("--rope-scaling '", std::string(text.substr(0, 80)), "' ", std::string(problem),
                   "; it is yarn:FACTOR or yarn:FACTOR:ORIGINAL, for example yarn:4:32768"));
}

absl::StatusOr<Scaling> Parse(std::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(std::string(text), ':');
  if (parts.front() != "yarn") return Refuse(text, "names no scaling that can be set");
  if (parts.size() != 2 && parts.size() != 3) return Refuse(text, "has a wrong number of parts");
  Scaling scaling;
  // The comparison is false for a NaN, too.
  if (!absl::SimpleAtod(parts[1], &scaling.factor) ||
      !(scaling.factor >= 1 && scaling.factor <= kMaxRopeFactor)) {
    return Refuse(text, absl::StrCat("has no factor from 1 to ", kMaxRopeFactor));
  }
  if (parts.size() == 3) {
    const absl::StatusOr<int64_t> original =
        common::ParseTokenCount(parts[2], 1, kMaxModelPositions);
    if (!original.ok()) {
      return Refuse(text, absl::StrCat("has a wrong original context: ",
                                       std::string(original.status().message())));
    }
    scaling.original_positions = *original;
  }
  return scaling;
}

}  // namespace

absl::Status CheckRopeScaling(std::string_view text) { return Parse(text).status(); }

absl::Status ApplyRopeScaling(std::string_view text, ModelConfig& config) {
  if (text.empty()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Scaling scaling, Parse(text));
  if (config.rope.query_growth != 0) {
    return Refuse(text, "cannot take the place of a scaling by which queries grow, too");
  }
  int64_t original = scaling.original_positions;
  if (original == 0) {
    switch (config.rope.type) {
      case RopeConfig::Type::kDefault:
        original = config.max_positions;
        break;
      case RopeConfig::Type::kYarn:
        original = config.rope.original_positions;
        break;
      case RopeConfig::Type::kLinear:
      case RopeConfig::Type::kLlama3:
      case RopeConfig::Type::kLong:
        return Refuse(text,
                      "takes the place of another scaling in config.json, with which the model was "
                      "trained, and does not say of which context");
    }
  }
  const double rotated_part = config.rope.rotated_part;
  config.rope = YarnRope(config.rope.theta, scaling.factor, original);
  config.rope.rotated_part = rotated_part;
  config.context_length = ContextLengthOf(config);
  return absl::OkStatus();
}

void ServeContexts(int64_t max_model_len, ModelConfig& config) {
  if (config.rope.type != RopeConfig::Type::kLong) return;
  const int64_t served = max_model_len == 0 ? config.context_length : max_model_len;
  config.rope.serves_long = served > config.rope.original_positions;
}

std::optional<std::string> DocumentedRopeScaling(const ModelConfig& config) {
  if (config.rope.type != RopeConfig::Type::kDefault) return std::nullopt;
  // Qwen3 counts 8,192 tokens of output apart.
  const bool is_qwen2 = config.family == ModelFamily::kQwen2 && config.max_positions == 32768;
  const bool is_qwen3 =
      (config.family == ModelFamily::kQwen3 || config.family == ModelFamily::kQwen3Moe) &&
      config.max_positions == 40960;
  if (is_qwen2 || is_qwen3) return "yarn:4:32768";
  return std::nullopt;
}

}  // namespace retroinfer
