#include "gpu_worker/model/rope_config.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/model_limits.h"

namespace retroinfer {
namespace {

constexpr int64_t kMaxPositions = int64_t{1} << 30;

constexpr const char* kNew = "rope_parameters";  // of transformers 5
constexpr const char* kOld = "rope_scaling";     // of its predecessors, which may be written, too

// The settings under `key`; none if there are none, which an empty object says, too.
absl::StatusOr<std::optional<common::JsonReader>> Settings(const common::JsonReader& config,
                                                           const char* key) {
  if (!config.Has(key)) return std::nullopt;
  ASSIGN_OR_RETURN(common::JsonReader settings, config.Object(key));
  if (settings.Size() == 0) return std::nullopt;
  return settings;
}

// The rope_theta of the first object that has one; where others have one, they must agree.
absl::StatusOr<double> ReadTheta(const std::vector<common::JsonReader>& objects,
                                 double default_theta) {
  std::optional<double> theta;
  for (const common::JsonReader& object : objects) {
    if (!object.Has("rope_theta")) continue;
    ASSIGN_OR_RETURN(const double value, object.Number("rope_theta", 1.000001, kMaxRopeTheta));
    if (theta.has_value() && *theta != value) {
      return object.Error("rope_theta", absl::StrCat("contradicts another one, which is ", *theta));
    }
    theta = value;
  }
  return theta.value_or(default_theta);
}

absl::StatusOr<std::string> TypeName(const common::JsonReader& settings) {
  for (const char* key : {"rope_type", "type"}) {
    if (settings.Has(key)) return settings.String(key);
  }
  bool scales = false;  // or has what is for a type alone
  for (const common::JsonMember& member : settings.json().Members()) {
    if (member.value.IsObject()) {
      return absl::UnimplementedError(absl::StrCat(
          settings.place(), ": settings for single layer types (\"", std::string(member.key),
          "\") are not supported; one RoPE for all layers is"));
    }
    scales |= !member.value.IsNull() && member.key != "rope_theta" &&
              member.key != "partial_rotary_factor";
  }
  if (!scales) return "default";
  return settings.Error("rope_type", "is missing; needs default, linear, llama3 or yarn");
}

double YarnScale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

absl::Status ReadYarn(const common::JsonReader& settings, int64_t max_positions, RopeConfig& rope) {
  ASSIGN_OR_RETURN(rope.original_positions, settings.IntOr("original_max_position_embeddings",
                                                           max_positions, 1, kMaxPositions));
  ASSIGN_OR_RETURN(rope.beta_fast, settings.NumberOr("beta_fast", 32, 0, 1e6));
  ASSIGN_OR_RETURN(rope.beta_slow, settings.NumberOr("beta_slow", 1, 0, 1e6));
  if (rope.beta_fast == 0) rope.beta_fast = 32;  // transformers reads 0 as absent
  if (rope.beta_slow == 0) rope.beta_slow = 1;
  ASSIGN_OR_RETURN(rope.truncate, settings.BoolOr("truncate", true));
  ASSIGN_OR_RETURN(const double mscale, settings.NumberOr("mscale", 0, 0, 1e3));
  ASSIGN_OR_RETURN(const double mscale_all, settings.NumberOr("mscale_all_dim", 0, 0, 1e3));
  const double inferred = mscale != 0 && mscale_all != 0
                              ? YarnScale(rope.factor, mscale) / YarnScale(rope.factor, mscale_all)
                              : YarnScale(rope.factor, 1);
  ASSIGN_OR_RETURN(rope.attention_factor,
                   settings.NumberOr("attention_factor", inferred, 1e-3, 1e3));
  return absl::OkStatus();
}

absl::Status ReadLlama3(const common::JsonReader& settings, RopeConfig& rope) {
  ASSIGN_OR_RETURN(rope.low_freq_factor, settings.Number("low_freq_factor", 1e-3, 1e6));
  ASSIGN_OR_RETURN(rope.high_freq_factor, settings.Number("high_freq_factor", 1e-3, 1e6));
  if (rope.low_freq_factor >= rope.high_freq_factor) {
    return settings.Error("high_freq_factor", "must be larger than \"low_freq_factor\"");
  }
  ASSIGN_OR_RETURN(rope.original_positions,
                   settings.Int("original_max_position_embeddings", 1, kMaxPositions));
  return absl::OkStatus();
}

// Frequencies below the low limit are divided by the factor, those above the high limit kept,
// those between interpolated.
double Llama3Frequency(const RopeConfig& rope, double inv_freq) {
  const auto original = static_cast<double>(rope.original_positions);
  const double wavelength = 2 * std::numbers::pi / inv_freq;
  if (wavelength > original / rope.low_freq_factor) return inv_freq / rope.factor;
  if (wavelength < original / rope.high_freq_factor) return inv_freq;
  const double smooth = (original / wavelength - rope.low_freq_factor) /
                        (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * inv_freq / rope.factor + smooth * inv_freq;
}

// Section 3.2 of the YaRN paper: a ramp over the dimensions between those that turn `beta_fast`
// and `beta_slow` times within the original context.
class YarnRamp {
 public:
  YarnRamp(const RopeConfig& rope, uint32_t head_dim) {
    const auto dimension = [&](double rotations) {
      return head_dim *
             std::log(static_cast<double>(rope.original_positions) /
                      (rotations * 2 * std::numbers::pi)) /
             (2 * std::log(rope.theta));
    };
    low_ = dimension(rope.beta_fast);
    high_ = dimension(rope.beta_slow);
    if (rope.truncate) {
      low_ = std::floor(low_);
      high_ = std::ceil(high_);
    }
    low_ = std::max(low_, 0.0);
    high_ = std::min(high_, head_dim - 1.0);
    if (low_ == high_) high_ += 0.001;
  }

  double Frequency(const RopeConfig& rope, uint32_t pair, double inv_freq) const {
    const double interpolated = std::clamp((pair - low_) / (high_ - low_), 0.0, 1.0);
    return inv_freq / rope.factor * interpolated + inv_freq * (1 - interpolated);
  }

 private:
  double low_;
  double high_;
};

absl::Status RefusePartialRotation(const std::vector<common::JsonReader>& objects) {
  for (const common::JsonReader& object : objects) {
    ASSIGN_OR_RETURN(const double partial, object.NumberOr("partial_rotary_factor", 1.0, 0.0, 1.0));
    if (partial == 1.0) continue;
    return absl::UnimplementedError(
        absl::StrCat(object.place(), ": partial_rotary_factor ", partial,
                     " is not supported; RoPE over the whole head (1.0) is"));
  }
  return absl::OkStatus();
}

// Ministral 3 and Llama 4 multiply queries by a factor that grows with the position.
absl::Status RefuseGrowingQueries(const std::vector<common::JsonReader>& objects) {
  constexpr char kKey[] = "llama_4_scaling_beta";
  for (const common::JsonReader& object : objects) {
    ASSIGN_OR_RETURN(const double beta, object.NumberOr(kKey, 0, -1e6, 1e6));
    if (beta == 0) continue;
    return absl::UnimplementedError(
        absl::StrCat(object.place(), ": ", kKey, " ", beta,
                     " is not supported; queries that do not grow with their positions (0) are"));
  }
  return absl::OkStatus();
}

// What `settings` make of plain RoPE with `theta`.
absl::StatusOr<RopeConfig> ReadSettings(const common::JsonReader& settings, double theta,
                                        int64_t max_positions) {
  RopeConfig rope{.theta = theta};
  ASSIGN_OR_RETURN(const std::string type, TypeName(settings));
  if (type == "default") return rope;
  if (type != "linear" && type != "llama3" && type != "yarn") {
    return absl::UnimplementedError(
        absl::StrCat(settings.place(), ": RoPE type \"", type.substr(0, 40),
                     "\" is not supported; default, linear, llama3 and yarn are"));
  }
  ASSIGN_OR_RETURN(rope.factor, settings.Number("factor", 1.0, kMaxRopeFactor));
  if (type == "linear") {
    rope.type = RopeConfig::Type::kLinear;
  } else if (type == "llama3") {
    rope.type = RopeConfig::Type::kLlama3;
    RETURN_IF_ERROR(ReadLlama3(settings, rope));
  } else {
    rope.type = RopeConfig::Type::kYarn;
    RETURN_IF_ERROR(ReadYarn(settings, max_positions, rope));
  }
  return rope;
}

}  // namespace

absl::StatusOr<RopeConfig> ReadRopeConfig(const common::JsonReader& config, int64_t max_positions,
                                          double default_theta) {
  ASSIGN_OR_RETURN(const auto parameters, Settings(config, kNew));
  ASSIGN_OR_RETURN(const auto scaling, Settings(config, kOld));
  std::vector<common::JsonReader> objects = {config};
  for (const auto& settings : {parameters, scaling}) {
    if (settings.has_value()) objects.push_back(*settings);
  }
  ASSIGN_OR_RETURN(const double theta, ReadTheta(objects, default_theta));
  RETURN_IF_ERROR(RefusePartialRotation(objects));
  RETURN_IF_ERROR(RefuseGrowingQueries(objects));
  if (objects.size() == 1) return RopeConfig{.theta = theta};
  ASSIGN_OR_RETURN(const RopeConfig rope, ReadSettings(objects[1], theta, max_positions));
  if (objects.size() == 3) {
    ASSIGN_OR_RETURN(const RopeConfig other, ReadSettings(objects[2], theta, max_positions));
    if (other != rope) {
      return config.Error(kOld, "contradicts \"rope_parameters\"; remove one of them");
    }
  }
  return rope;
}

namespace {

constexpr const char* kFull = "full_attention";
constexpr const char* kSliding = "sliding_attention";

absl::StatusOr<RopeConfig> ReadOfLayerType(const common::JsonReader& parameters, const char* type,
                                           int64_t max_positions, double default_theta) {
  if (!parameters.Has(type)) return RopeConfig{.theta = default_theta};
  ASSIGN_OR_RETURN(const common::JsonReader settings, parameters.Object(type));
  RETURN_IF_ERROR(RefusePartialRotation({settings}));
  RETURN_IF_ERROR(RefuseGrowingQueries({settings}));
  ASSIGN_OR_RETURN(const double theta, ReadTheta({settings}, default_theta));
  return ReadSettings(settings, theta, max_positions);
}

absl::StatusOr<LayerTypeRopes> ReadOldLayerTypeRopes(const common::JsonReader& config,
                                                     int64_t max_positions,
                                                     const LayerTypeRopes& defaults) {
  LayerTypeRopes ropes = defaults;
  RETURN_IF_ERROR(RefusePartialRotation({config}));
  ASSIGN_OR_RETURN(ropes.full.theta, ReadTheta({config}, defaults.full.theta));
  ASSIGN_OR_RETURN(
      ropes.sliding.theta,
      config.NumberOr("rope_local_base_freq", defaults.sliding.theta, 1.000001, kMaxRopeTheta));
  ASSIGN_OR_RETURN(const auto scaling, Settings(config, kOld));
  if (!scaling.has_value()) return ropes;
  RETURN_IF_ERROR(RefusePartialRotation({*scaling}));
  RETURN_IF_ERROR(RefuseGrowingQueries({*scaling}));
  ASSIGN_OR_RETURN(ropes.full, ReadSettings(*scaling, ropes.full.theta, max_positions));
  return ropes;
}

}  // namespace

absl::StatusOr<LayerTypeRopes> ReadLayerTypeRopes(const common::JsonReader& config,
                                                  int64_t max_positions,
                                                  const LayerTypeRopes& defaults) {
  ASSIGN_OR_RETURN(const auto parameters, Settings(config, kNew));
  if (!parameters.has_value()) return ReadOldLayerTypeRopes(config, max_positions, defaults);
  for (const common::JsonMember& member : parameters->json().Members()) {
    if (member.key == kFull || member.key == kSliding) continue;
    return parameters->Error(std::string(member.key),
                             "is not expected: the model has a RoPE for each of full_attention "
                             "and sliding_attention");
  }
  if (config.Has(kOld)) {
    return config.Error(kOld, "and \"rope_parameters\" are there; remove one of them");
  }
  LayerTypeRopes ropes;
  ASSIGN_OR_RETURN(ropes.full,
                   ReadOfLayerType(*parameters, kFull, max_positions, defaults.full.theta));
  ASSIGN_OR_RETURN(ropes.sliding,
                   ReadOfLayerType(*parameters, kSliding, max_positions, defaults.sliding.theta));
  return ropes;
}

RopeConfig YarnRope(double theta, double factor, int64_t original_positions) {
  return {.type = RopeConfig::Type::kYarn,
          .theta = theta,
          .factor = factor,
          .original_positions = original_positions,
          .attention_factor = YarnScale(factor, 1)};
}

int64_t RopeConfig::ContextLength(int64_t max_positions) const {
  switch (type) {
    case Type::kDefault:
    case Type::kLlama3:
      return max_positions;
    case Type::kLinear:
      return static_cast<int64_t>(static_cast<double>(max_positions) * factor);
    case Type::kYarn:
      return std::max(max_positions,
                      static_cast<int64_t>(static_cast<double>(original_positions) * factor));
  }
  return max_positions;
}

std::vector<float> RopeConfig::InverseFrequencies(uint32_t head_dim) const {
  std::vector<float> frequencies(head_dim / 2);
  const YarnRamp ramp(*this, head_dim);
  for (uint32_t i = 0; i < frequencies.size(); ++i) {
    const double plain = 1.0 / std::pow(theta, 2.0 * i / head_dim);
    double scaled = plain;
    switch (type) {
      case Type::kDefault:
        break;
      case Type::kLinear:
        scaled = plain / factor;
        break;
      case Type::kLlama3:
        scaled = Llama3Frequency(*this, plain);
        break;
      case Type::kYarn:
        scaled = ramp.Frequency(*this, i, plain);
        break;
    }
    frequencies[i] = static_cast<float>(scaled);
  }
  return frequencies;
}

}  // namespace retroinfer
