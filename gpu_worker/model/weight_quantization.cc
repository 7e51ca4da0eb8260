#include "gpu_worker/model/weight_quantization.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/ops/model/weight_view.h"

namespace retroinfer {
namespace {

constexpr size_t kMaxGroups = 64;
constexpr char kSupported[] =
    "e4m3 as compressed-tensors (float-quantized), fp8 or modelopt (FP8) write it is; 4 bits as "
    "AWQ (gemm), GPTQ, compressed-tensors (pack-quantized, nvfp4-pack-quantized, "
    "mxfp4-pack-quantized) or modelopt (NVFP4) write them are; and weights in bf16, f16 or f32, "
    "which --weights-dtype fp8 or int4 rounds while they are loaded";

absl::Status Unsupported(const common::JsonReader& object, const std::string& key,
                         const std::string& problem) {
  return absl::UnimplementedError(
      absl::StrCat(object.place(), ": key \"", key, "\": ", problem, "; ", kSupported));
}

absl::Status UnsupportedValue(const common::JsonReader& object, const std::string& key,
                              const std::string& value) {
  return Unsupported(object, key, absl::StrCat("\"", value.substr(0, 80), "\" is not supported"));
}

absl::StatusOr<std::string> StringOr(const common::JsonReader& object, const std::string& key,
                                     const std::string& absent) {
  return object.Has(key) ? object.String(key) : absl::StatusOr<std::string>(absent);
}

// Checks that a key, if it is there, holds `wanted`.
absl::Status Require(const common::JsonReader& object, const std::string& key,
                     const std::string& wanted) {
  ASSIGN_OR_RETURN(const std::string value, StringOr(object, key, wanted));
  return value == wanted ? absl::OkStatus() : UnsupportedValue(object, key, value);
}

absl::Status RequireBlock(const common::JsonReader& object, const std::string& key) {
  constexpr int64_t kBlock = WeightScales::kBlock;
  ASSIGN_OR_RETURN(const std::vector<int64_t> block, object.IntList(key, 1, 1 << 20, 2));
  if (block == std::vector<int64_t>{kBlock, kBlock}) return absl::OkStatus();
  return Unsupported(object, key,
                     absl::StrCat("only blocks of ", kBlock, " x ", kBlock, " are supported"));
}

// Checks that a key, if it is there, is `wanted`.
absl::Status RequireBool(const common::JsonReader& object, const char* key, bool wanted) {
  ASSIGN_OR_RETURN(const bool value, object.BoolOr(key, wanted));
  if (value == wanted) return absl::OkStatus();
  return Unsupported(object, key, absl::StrCat(value ? "true" : "false", " is not supported"));
}

absl::Status RequireFourBits(const common::JsonReader& object, const std::string& key) {
  ASSIGN_OR_RETURN(const int64_t bits, object.Int(key, 1, 64));
  if (bits == 4) return absl::OkStatus();
  return Unsupported(object, key, absl::StrCat("weights of ", bits, " bits are not"));
}

// Input features of a group; 0: all of them.
absl::StatusOr<int64_t> ReadGroupSize(const common::JsonReader& object) {
  ASSIGN_OR_RETURN(const int64_t size, object.Int("group_size", -1, int64_t{1} << 32));
  if (size == -1) return int64_t{0};
  if (size == 32 || size == 64 || size == 128) return size;
  return Unsupported(object, "group_size",
                     absl::StrCat("groups of ", size, " are not, of 32, 64, 128 and -1 (all) are"));
}

absl::Status RequireGroup(const Float4Form& form, const common::JsonReader& object,
                          const std::string& key) {
  ASSIGN_OR_RETURN(const int64_t size, object.Int(key, -1, int64_t{1} << 32));
  if (size == form.group) return absl::OkStatus();
  return Unsupported(object, key,
                     absl::StrCat("groups of ", size, " are not, of ", form.group, " are, in ",
                                  std::string(form.name)));
}

// The "weights" of a group of compressed-tensors in whole numbers of 4 bits.
absl::StatusOr<StoredForm> ReadPackedScheme(const common::JsonReader& weights) {
  RETURN_IF_ERROR(RequireFourBits(weights, "num_bits"));
  RETURN_IF_ERROR(Require(weights, "type", "int"));
  RETURN_IF_ERROR(RequireBool(weights, "dynamic", false));
  ASSIGN_OR_RETURN(const bool symmetric, weights.BoolOr("symmetric", true));
  ASSIGN_OR_RETURN(const std::string strategy, weights.String("strategy"));
  if (strategy == "channel") return CompressedInt4(0, !symmetric);
  if (strategy != "group") return UnsupportedValue(weights, "strategy", strategy);
  ASSIGN_OR_RETURN(const int64_t group_size, ReadGroupSize(weights));
  return CompressedInt4(group_size, !symmetric);
}

// The "weights" of a group of compressed-tensors in e4m3.
absl::StatusOr<StoredForm> ReadFloatScheme(const common::JsonReader& weights) {
  ASSIGN_OR_RETURN(const int64_t bits, weights.Int("num_bits", 1, 64));
  ASSIGN_OR_RETURN(const std::string type, weights.String("type"));
  if (bits != 8 || type != "float") {
    return Unsupported(
        weights, "num_bits",
        absl::StrCat("weights of ", bits, " bits, type \"", type.substr(0, 40), "\" are not"));
  }
  RETURN_IF_ERROR(RequireBool(weights, "symmetric", true));
  RETURN_IF_ERROR(RequireBool(weights, "dynamic", false));
  ASSIGN_OR_RETURN(const std::string strategy, weights.String("strategy"));
  if (strategy == "tensor") return kFp8OfMatrices;
  if (strategy == "channel") return kFp8OfFeatures;
  if (strategy != "block") return UnsupportedValue(weights, "strategy", strategy);
  RETURN_IF_ERROR(RequireBlock(weights, "block_structure"));
  return kFp8OfBlocks;
}

// The "weights" of a group of compressed-tensors in floats of 4 bits.
absl::Status RequireFloat4Scheme(const Float4Form& form, const common::JsonReader& weights) {
  RETURN_IF_ERROR(RequireFourBits(weights, "num_bits"));
  RETURN_IF_ERROR(Require(weights, "type", "float"));
  RETURN_IF_ERROR(RequireBool(weights, "symmetric", true));
  RETURN_IF_ERROR(RequireBool(weights, "dynamic", false));
  ASSIGN_OR_RETURN(const std::string strategy, weights.String("strategy"));
  if (strategy != (form.global_end.empty() ? "group" : "tensor_group")) {
    return UnsupportedValue(weights, "strategy", strategy);
  }
  return RequireGroup(form, weights, "group_size");
}

// The form of a group of compressed-tensors.
absl::StatusOr<WeightQuantization> ReadScheme(const std::string& format,
                                              const common::JsonReader& weights) {
  WeightQuantization scheme{{}, "compressed-tensors", false, {}};
  if (format == "nvfp4-pack-quantized") scheme.float4 = kCompressedNvfp4;
  if (format == "mxfp4-pack-quantized") scheme.float4 = kCompressedMxfp4;
  if (scheme.float4.has_value()) {
    RETURN_IF_ERROR(RequireFloat4Scheme(*scheme.float4, weights));
  } else {
    ASSIGN_OR_RETURN(scheme.form, format == "pack-quantized" ? ReadPackedScheme(weights)
                                                             : ReadFloatScheme(weights));
  }
  return scheme;
}

absl::StatusOr<WeightQuantization> ReadCompressedTensors(const common::JsonReader& settings) {
  ASSIGN_OR_RETURN(const std::string format, settings.String("format"));
  constexpr std::string_view kFormats[] = {"float-quantized", "naive-quantized", "pack-quantized",
                                           "nvfp4-pack-quantized", "mxfp4-pack-quantized"};
  if (std::ranges::find(kFormats, format) == std::end(kFormats)) {
    return UnsupportedValue(settings, "format", format);
  }
  for (const char* key : {"sparsity_config", "transform_config"}) {
    if (!settings.Has(key)) continue;
    ASSIGN_OR_RETURN(const common::JsonReader object, settings.Object(key));
    ASSIGN_OR_RETURN(const std::string inner, StringOr(object, "format", "dense"));
    const bool empty = object.json().Size() == 0;
    const bool dense = std::string(key) == "sparsity_config" && inner == "dense";
    if (!empty && !dense) return Unsupported(settings, key, "is not supported");
  }
  ASSIGN_OR_RETURN(const common::JsonReader groups, settings.Object("config_groups"));
  std::optional<WeightQuantization> result;
  size_t num_groups = 0;
  for (const common::JsonMember& member : groups.json().Members()) {
    if (++num_groups > kMaxGroups) {
      return settings.Error("config_groups", absl::StrCat("has more than ", kMaxGroups));
    }
    ASSIGN_OR_RETURN(const common::JsonReader group, groups.Object(member));
    ASSIGN_OR_RETURN(const common::JsonReader weights, group.Object("weights"));
    RETURN_IF_ERROR(Require(group, "format", format));
    ASSIGN_OR_RETURN(const WeightQuantization of_group, ReadScheme(format, weights));
    const bool alike =
        !result.has_value() || (result->form.part == of_group.form.part &&
                                result->form.scale_cols == of_group.form.scale_cols &&
                                result->form.form.has_zeros == of_group.form.form.has_zeros);
    if (!alike) {
      return Unsupported(settings, "config_groups", "groups of several strategies are not");
    }
    result = of_group;
  }
  if (!result.has_value()) return settings.Error("config_groups", "is empty");
  result->has_kv_scheme = settings.Has("kv_cache_scheme");
  return *std::move(result);
}

absl::StatusOr<WeightQuantization> ReadFp8(const common::JsonReader& settings) {
  RETURN_IF_ERROR(Require(settings, "fmt", "e4m3"));
  ASSIGN_OR_RETURN(const std::string activations,
                   StringOr(settings, "activation_scheme", "dynamic"));
  if (activations != "dynamic" && activations != "static") {
    return UnsupportedValue(settings, "activation_scheme", activations);
  }
  if (!settings.Has("weight_block_size")) {
    return WeightQuantization{kFp8OfMatrices, "fp8", settings.Has("kv_cache_scheme")};
  }
  RETURN_IF_ERROR(RequireBlock(settings, "weight_block_size"));
  return WeightQuantization{kFp8OfBlocksInverse, "fp8", false};
}

absl::StatusOr<WeightQuantization> ReadAwq(const common::JsonReader& settings) {
  RETURN_IF_ERROR(RequireFourBits(settings, "bits"));
  ASSIGN_OR_RETURN(const std::string version, StringOr(settings, "version", "gemm"));
  if (absl::AsciiStrToLower(version) != "gemm") {
    return UnsupportedValue(settings, "version", version);
  }
  RETURN_IF_ERROR(RequireBool(settings, "zero_point", true));
  ASSIGN_OR_RETURN(const int64_t group_size, ReadGroupSize(settings));
  return WeightQuantization{AwqInt4(group_size), "awq", false};
}

absl::StatusOr<WeightQuantization> ReadGptq(const common::JsonReader& settings) {
  RETURN_IF_ERROR(RequireFourBits(settings, "bits"));
  ASSIGN_OR_RETURN(const std::string version, StringOr(settings, "checkpoint_format", "gptq"));
  if (version != "gptq" && version != "gptq_v2") {
    return UnsupportedValue(settings, "checkpoint_format", version);
  }
  RETURN_IF_ERROR(Require(settings, "pack_dtype", "int32"));
  RETURN_IF_ERROR(RequireBool(settings, "is_marlin_format", false));
  RETURN_IF_ERROR(RequireBool(settings, "lm_head", false));
  if (settings.Has("dynamic")) {
    ASSIGN_OR_RETURN(const common::JsonReader modules, settings.Object("dynamic"));
    if (modules.json().Size() != 0) {
      return Unsupported(settings, "dynamic", "modules quantized unlike others are not supported");
    }
  }
  ASSIGN_OR_RETURN(const int64_t group_size, ReadGroupSize(settings));
  return WeightQuantization{GptqInt4(group_size, version == "gptq" ? 1 : 0), "gptq", false};
}

absl::StatusOr<WeightQuantization> ReadModelOpt(const common::JsonReader& settings) {
  ASSIGN_OR_RETURN(const std::string algorithm, settings.String("quant_algo"));
  WeightQuantization result{kFp8OfMatrices,
                            "modelopt",
                            settings.Has("kv_cache_quant_algo") || settings.Has("kv_cache_scheme"),
                            {}};
  if (algorithm == "FP8") return result;
  if (algorithm != "NVFP4") return UnsupportedValue(settings, "quant_algo", algorithm);
  result.float4 = kModelOptNvfp4;
  if (settings.Has("group_size")) {
    RETURN_IF_ERROR(RequireGroup(*result.float4, settings, "group_size"));
  }
  return result;
}

absl::StatusOr<WeightQuantization> ReadSettings(const common::JsonReader& settings) {
  // ModelOpt once wrote no method.
  ASSIGN_OR_RETURN(
      const std::string method,
      StringOr(settings, "quant_method", settings.Has("quant_algo") ? "modelopt" : ""));
  if (method == "compressed-tensors") return ReadCompressedTensors(settings);
  if (method == "fp8") return ReadFp8(settings);
  if (method == "modelopt") return ReadModelOpt(settings);
  if (method == "awq") return ReadAwq(settings);
  if (method == "gptq") return ReadGptq(settings);
  if (method.empty()) return settings.Error("quant_method", "is missing");
  return UnsupportedValue(settings, "quant_method", method);
}

}  // namespace

std::string WeightQuantization::ToString() const {
  if (float4.has_value()) return float4->ToString();
  return absl::StrCat(std::string(form.form.name), " (", method, ", ", std::string(form.scales_are),
                      ")");
}

absl::StatusOr<std::optional<WeightQuantization>> ReadWeightQuantization(
    const common::JsonReader& config, const common::JsonReader* hf_quant_config) {
  std::optional<WeightQuantization> result;
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (!config.Has(key) || result.has_value()) continue;
    ASSIGN_OR_RETURN(const common::JsonReader settings, config.Object(key));
    ASSIGN_OR_RETURN(result, ReadSettings(settings));
  }
  if (result.has_value() || hf_quant_config == nullptr) return result;
  ASSIGN_OR_RETURN(const common::JsonReader settings, hf_quant_config->Object("quantization"));
  if (!settings.Has("quant_algo")) return result;  // the KV cache alone
  ASSIGN_OR_RETURN(result, ReadModelOpt(settings));
  return result;
}

absl::Status RequireMxfp4(const common::JsonReader& config) {
  constexpr char kKey[] = "quantization_config";
  constexpr char kMethod[] = "quant_method";
  const auto unsupported = [](const common::JsonReader& at, const char* key,
                              const std::string& problem) {
    return absl::UnimplementedError(absl::StrCat(at.place(), ": key \"", key, "\": ", problem));
  };
  if (!config.Has(kKey)) {
    return unsupported(config, kKey, "is missing: experts are supported in MXFP4");
  }
  ASSIGN_OR_RETURN(const common::JsonReader settings, config.Object(kKey));
  ASSIGN_OR_RETURN(const std::string method, settings.String(kMethod));
  if (method == "mxfp4") return absl::OkStatus();
  return unsupported(settings, kMethod,
                     absl::StrCat(method.substr(0, 40), " is not supported here; mxfp4 is"));
}

}  // namespace retroinfer
