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

// LongRoPE of Phi-3. What the original context is stands beside the settings or among them.
absl::Status ReadLong(const common::JsonReader& config, const common::JsonReader& settings,
                      int64_t max_positions, RopeConfig& rope) {
  constexpr char kOriginal[] = "original_max_position_embeddings";
  constexpr int64_t kDefaultOriginal = 4096;
  for (const char* key : {"short_mscale", "long_mscale"}) {
    if (!settings.Has(key)) continue;
    return absl::UnimplementedError(
        absl::StrCat(settings.place(), ": key \"", key, "\" is not supported"));
  }
  const common::JsonReader& place = config.Has(kOriginal) ? config : settings;
  ASSIGN_OR_RETURN(rope.original_positions,
                   place.IntOr(kOriginal, kDefaultOriginal, 2, kMaxPositions));
  ASSIGN_OR_RETURN(rope.short_factors, settings.NumberList("short_factor", 1e-3, 1e6, kMaxHidden));
  ASSIGN_OR_RETURN(rope.long_factors, settings.NumberList("long_factor", 1e-3, 1e6, kMaxHidden));
  const double stretched =
      static_cast<double>(max_positions) / static_cast<double>(rope.original_positions);
  ASSIGN_OR_RETURN(const double factor, settings.NumberOr("factor", stretched, 1e-3, 1e6));
  const double inferred =
      factor <= 1 ? 1
                  : std::sqrt(1 + std::log(factor) /
                                      std::log(static_cast<double>(rope.original_positions)));
  ASSIGN_OR_RETURN(rope.attention_factor,
                   settings.NumberOr("attention_factor", inferred, 1e-3, 1e3));
  rope.serves_long = max_positions > rope.original_positions;
  return absl::OkStatus();
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

// The settings go before what stands beside them.
absl::StatusOr<double> ReadRotatedPart(const std::vector<common::JsonReader>& objects,
                                       bool may_be_partial) {
  double rotated = 1;
  for (const common::JsonReader& object : objects) {
    ASSIGN_OR_RETURN(const double partial, object.NumberOr("partial_rotary_factor", 1.0, 0.0, 1.0));
    if (partial == 1.0) continue;
    if (!may_be_partial || partial == 0) {
      return absl::UnimplementedError(
          absl::StrCat(object.place(), ": partial_rotary_factor ", partial,
                       " is not supported; RoPE over the whole head (1.0) is"));
    }
    rotated = partial;
  }
  return rotated;
}

// Ministral 3 and Llama 4 multiply queries by a factor that grows with the position.
absl::StatusOr<double> ReadQueryGrowth(const std::vector<common::JsonReader>& objects,
                                       bool may_grow) {
  constexpr char kKey[] = "llama_4_scaling_beta";
  double growth = 0;
  for (const common::JsonReader& object : objects) {
    ASSIGN_OR_RETURN(const double beta, object.NumberOr(kKey, 0, -1e6, 1e6));
    if (beta == 0) continue;
    if (!may_grow) {
      return absl::UnimplementedError(
          absl::StrCat(object.place(), ": ", kKey, " ", beta,
                       " is not supported; queries that do not grow with their positions (0) are"));
    }
    growth = beta;
  }
  return growth;
}

// What `settings` of `config` make of plain RoPE.
absl::StatusOr<RopeConfig> ReadSettings(const common::JsonReader& config,
                                        const common::JsonReader& settings, RopeConfig rope,
                                        int64_t max_positions, const RopeOfFamily& family) {
  ASSIGN_OR_RETURN(const std::string type, TypeName(settings));
  if (type == "default") return rope;
  if (family.is_long && (type == "longrope" || type == "su" || type == "yarn")) {
    rope.type = RopeConfig::Type::kLong;
    RETURN_IF_ERROR(ReadLong(config, settings, max_positions, rope));
    return rope;
  }
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
                                          const RopeOfFamily& family) {
  ASSIGN_OR_RETURN(const auto parameters, Settings(config, kNew));
  ASSIGN_OR_RETURN(const auto scaling, Settings(config, kOld));
  std::vector<common::JsonReader> objects = {config};
  for (const auto& settings : {parameters, scaling}) {
    if (settings.has_value()) objects.push_back(*settings);
  }
  ASSIGN_OR_RETURN(const double theta, ReadTheta(objects, family.theta));
  RopeConfig plain{.theta = theta};
  ASSIGN_OR_RETURN(plain.rotated_part, ReadRotatedPart(objects, family.may_be_partial));
  ASSIGN_OR_RETURN(plain.query_growth, ReadQueryGrowth(objects, family.may_grow));
  if (objects.size() == 1) return plain;
  ASSIGN_OR_RETURN(const RopeConfig rope,
                   ReadSettings(config, objects[1], plain, max_positions, family));
  if (objects.size() == 3) {
    ASSIGN_OR_RETURN(const RopeConfig other,
                     ReadSettings(config, objects[2], plain, max_positions, family));
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
  RETURN_IF_ERROR(ReadRotatedPart({settings}, false).status());
  RETURN_IF_ERROR(ReadQueryGrowth({settings}, false).status());
  ASSIGN_OR_RETURN(const double theta, ReadTheta({settings}, default_theta));
  return ReadSettings(parameters, settings, {.theta = theta}, max_positions, {});
}

absl::StatusOr<LayerTypeRopes> ReadOldLayerTypeRopes(const common::JsonReader& config,
                                                     int64_t max_positions,
                                                     const LayerTypeRopes& defaults) {
  LayerTypeRopes ropes = defaults;
  ASSIGN_OR_RETURN(ropes.full,
                   ReadRopeConfig(config, max_positions, {.theta = defaults.full.theta}));
  ASSIGN_OR_RETURN(
      ropes.sliding.theta,
      config.NumberOr("rope_local_base_freq", defaults.sliding.theta, 1.000001, kMaxRopeTheta));
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
    case Type::kLong:
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
  const uint32_t dims = RotatedDims(head_dim);
  std::vector<float> frequencies(dims / 2);
  const YarnRamp ramp(*this, dims);
  for (uint32_t i = 0; i < frequencies.size(); ++i) {
    const double plain = 1.0 / std::pow(theta, 2.0 * i / dims);
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
      case Type::kLong:
        scaled = plain / (serves_long ? long_factors : short_factors)[i];
        break;
    }
    frequencies[i] = static_cast<float>(scaled);
  }
  return frequencies;
}

}  // namespace retroinfer
