// llama.cpp divides the angle of each pair of channels by a factor of rope_freqs.weight, where a
// file has it, and its converter writes there what llama3 scaling comes to. The scaling itself is
// in no key. So its factor is read off the slowest pair, the other settings are those of every
// Llama from 3.1 on, and the factors that follow are compared with those of the file.
#include "gpu_worker/model/gguf/gguf_rope.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/model_limits.h"

namespace retroinfer {
namespace {

constexpr char kFactors[] = "rope_freqs.weight";
constexpr double kFactorTolerance = 1e-4;  // f32 of factors that were computed in f32
constexpr int64_t kMaxPositions = int64_t{1} << 30;
constexpr size_t kMaxTypeBytes = 64;

// Llama 3.1, 3.2 and 3.3.
RopeConfig Llama3Rope(double theta, double factor) {
  return {.type = RopeConfig::Type::kLlama3,
          .theta = theta,
          .factor = factor,
          .low_freq_factor = 1,
          .high_freq_factor = 4,
          .original_positions = 8192};
}

bool HasFactors(const RopeConfig& rope, std::span<const float> factors) {
  const auto head_dim = static_cast<uint32_t>(2 * factors.size());
  const std::vector<float> scaled = rope.InverseFrequencies(head_dim);
  const std::vector<float> plain = RopeConfig{.theta = rope.theta}.InverseFrequencies(head_dim);
  for (size_t i = 0; i < factors.size(); ++i) {
    const double expected = double{plain[i]} / double{scaled[i]};
    // The comparison is false for a NaN, too.
    if (!(std::abs(factors[i] - expected) <= kFactorTolerance * expected)) return false;
  }
  return true;
}

// The scaling that a file's factors are of.
absl::StatusOr<RopeConfig> FindScaling(const GgufFiles& files, const GgufTensor& tensor,
                                       double theta, uint32_t head_dim) {
  const std::string place = absl::StrCat(files.path(), ": tensor \"", kFactors, "\"");
  if (tensor.blocks->plain != WeightType::kF32 || tensor.shape.size() != 1 ||
      tensor.cols() != head_dim / 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(place, " needs ", head_dim / 2, " factors in F32"));
  }
  std::vector<float> factors(head_dim / 2);
  std::memcpy(factors.data(), tensor.bytes.data(), tensor.bytes.size());
  const RopeConfig plain{.theta = theta};
  if (HasFactors(plain, factors)) return plain;
  const RopeConfig scaled = Llama3Rope(theta, std::round(factors.back()));
  if (factors.back() > 1 && factors.back() <= kMaxRopeFactor && HasFactors(scaled, factors)) {
    return scaled;
  }
  return absl::UnimplementedError(
      absl::StrCat(place,
                   " has factors of RoPE that no supported scaling gives; llama3 with "
                   "low_freq_factor 1, high_freq_factor 4 and 8192 original positions is "
                   "supported: take the Hugging Face folder that the file was made from"));
}

// Settings of YaRN that are no parameters of RopeConfig.
absl::Status CheckYarn(const GgufMetadata& metadata, const std::string& scaling) {
  const std::string extension = scaling + "yarn_ext_factor";
  ASSIGN_OR_RETURN(const double mix, metadata.NumberOr(extension, 1, -1e6, 1e6));
  if (mix != 1 && mix != -1) {  // -1: what YaRN has
    return metadata.Unsupported(extension, absl::StrCat(mix, " is not supported; 1 is"));
  }
  const std::string multiplier = scaling + "yarn_log_multiplier";
  ASSIGN_OR_RETURN(const double log, metadata.NumberOr(multiplier, 0, -1e6, 1e6));
  if (log != 0) return metadata.Unsupported(multiplier, "is not supported");
  return absl::OkStatus();
}

absl::StatusOr<RopeConfig> ReadYarn(const GgufMetadata& metadata, const std::string& scaling,
                                    double theta, double factor, int64_t max_positions) {
  RETURN_IF_ERROR(CheckYarn(metadata, scaling));
  ASSIGN_OR_RETURN(const int64_t original, metadata.IntOr(scaling + "original_context_length",
                                                          max_positions, 1, kMaxPositions));
  RopeConfig rope = YarnRope(theta, factor, original);
  ASSIGN_OR_RETURN(rope.beta_fast,
                   metadata.NumberOr(scaling + "yarn_beta_fast", rope.beta_fast, 1e-3, 1e6));
  ASSIGN_OR_RETURN(rope.beta_slow,
                   metadata.NumberOr(scaling + "yarn_beta_slow", rope.beta_slow, 1e-3, 1e6));
  for (const char* const key : {"attn_factor", "yarn_attn_factor"}) {
    ASSIGN_OR_RETURN(const double times, metadata.NumberOr(scaling + key, 1, 1e-3, 1e3));
    rope.attention_factor *= times;
  }
  return rope;
}

}  // namespace

absl::StatusOr<RopeConfig> ReadGgufRope(const GgufFiles& files, const std::string& prefix,
                                        int64_t max_positions, uint32_t head_dim) {
  const GgufMetadata& metadata = files.metadata();
  const std::string dimensions = prefix + "rope.dimension_count";
  ASSIGN_OR_RETURN(const int64_t rotated, metadata.IntOr(dimensions, head_dim, 0, kMaxHidden));
  if (rotated != head_dim) {
    return metadata.Unsupported(dimensions, absl::StrCat("is ", rotated, " of heads of ", head_dim,
                                                         " dimensions; RoPE over the whole head is "
                                                         "supported"));
  }
  ASSIGN_OR_RETURN(const double theta,
                   metadata.NumberOr(prefix + "rope.freq_base", 10000, 1.000001, kMaxRopeTheta));
  const std::string scaling = prefix + "rope.scaling.";
  std::string type = "none";
  // Converters before 2023-10 wrote a factor alone.
  const std::string linear = prefix + "rope.scale_linear";
  if (metadata.Has(linear)) type = "linear";
  if (metadata.Has(scaling + "type")) {
    ASSIGN_OR_RETURN(const std::string_view name, metadata.String(scaling + "type", kMaxTypeBytes));
    type = std::string(name);
  }
  const auto factors = files.tensors().find(kFactors);
  if (type == "none") {
    if (factors == files.tensors().end()) return RopeConfig{.theta = theta};
    return FindScaling(files, factors->second, theta, head_dim);
  }
  if (factors != files.tensors().end()) {
    return metadata.Unsupported(scaling + "type",
                                absl::StrCat("is \"", type, "\" beside the factors in ", kFactors,
                                             "; one of them is supported"));
  }
  if (type != "linear" && type != "yarn") {
    return metadata.Unsupported(
        scaling + "type",
        absl::StrCat("\"", type, "\" is not supported; none, linear and yarn are"));
  }
  const std::string factor_key =
      metadata.Has(scaling + "factor") || !metadata.Has(linear) ? scaling + "factor" : linear;
  ASSIGN_OR_RETURN(const double factor, metadata.Number(factor_key, 1, kMaxRopeFactor));
  if (type == "yarn") return ReadYarn(metadata, scaling, theta, factor, max_positions);
  return RopeConfig{.type = RopeConfig::Type::kLinear, .theta = theta, .factor = factor};
}

}  // namespace retroinfer
