#include "gpu_worker/model/weight_quantization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"

namespace retroinfer {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;

common::JsonReader Object(const json& value, const std::string& name) {
  const std::string text = value.dump();
  auto object = common::JsonReader::ParseObject(text, name);
  EXPECT_TRUE(object.ok()) << object.status();
  return *std::move(object);
}

absl::StatusOr<std::optional<WeightQuantization>> Read(const json& settings) {
  return ReadWeightQuantization(Object({{"quantization_config", settings}}, "config.json"),
                                nullptr);
}

json CompressedTensors(const std::string& strategy) {
  json weights = {{"num_bits", 8},        {"type", "float"},  {"symmetric", true},
                  {"strategy", strategy}, {"dynamic", false}, {"block_structure", nullptr}};
  if (strategy == "block") weights["block_structure"] = {128, 128};
  return {{"quant_method", "compressed-tensors"},
          {"format", "float-quantized"},
          {"ignore", {"lm_head", "re:.*gate.*"}},
          {"kv_cache_scheme", nullptr},
          {"sparsity_config", {{"format", "dense"}}},
          {"transform_config", json::object()},
          {"config_groups", {{"group_0", {{"targets", {"Linear"}}, {"weights", weights}}}}}};
}

void ExpectUnsupported(const json& settings, const std::string& key, const std::string& name) {
  const auto read = Read(settings);
  ASSERT_EQ(read.status().code(), absl::StatusCode::kUnimplemented) << read.status();
  // What is wrong, and what would be right.
  EXPECT_THAT(std::string(read.status().message()),
              AllOf(HasSubstr("config.json: quantization_config"), HasSubstr("\"" + key + "\""),
                    HasSubstr(name), HasSubstr("compressed-tensors"), HasSubstr("modelopt"),
                    HasSubstr("--weights-dtype fp8 or int4")));
}

TEST(WeightQuantizationTest, NothingIsSaidOfNumbers) {
  const auto read = ReadWeightQuantization(Object(json::object(), "config.json"), nullptr);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_FALSE(read->has_value());
}

TEST(WeightQuantizationTest, EachFormIsRead) {
  struct Form {
    json settings;
    StoredForm stored;
  };
  const Form forms[] = {
      {CompressedTensors("tensor"), kFp8OfMatrices},
      {CompressedTensors("channel"), kFp8OfFeatures},
      {CompressedTensors("block"), kFp8OfBlocks},
      {{{"quant_method", "fp8"}, {"activation_scheme", "static"}}, kFp8OfMatrices},
      {{{"quant_method", "fp8"}, {"fmt", "e4m3"}, {"weight_block_size", {128, 128}}},
       kFp8OfBlocksInverse},
      {{{"quant_method", "modelopt"}, {"quant_algo", "FP8"}}, kFp8OfMatrices},
      {{{"quant_algo", "FP8"}}, kFp8OfMatrices}};
  for (const Form& form : forms) {
    const auto read = Read(form.settings);
    ASSERT_TRUE(read.ok() && read->has_value()) << read.status() << form.settings;
    EXPECT_EQ((*read)->form.part, form.stored.part) << form.settings;
    EXPECT_EQ((*read)->form.scales_end, form.stored.scales_end);
    EXPECT_FALSE((*read)->has_kv_scheme);
  }
  EXPECT_EQ((*Read(CompressedTensors("channel")))->ToString(),
            "fp8 (compressed-tensors, a scale for each output feature)");
}

TEST(WeightQuantizationTest, AFileBesideConfigJsonCounts) {
  const common::JsonReader config = Object(json::object(), "config.json");
  json file = {{"producer", {{"name", "modelopt"}}},
               {"quantization", {{"quant_algo", "FP8"}, {"kv_cache_quant_algo", "FP8"}}}};
  const common::JsonReader fp8 = Object(file, "hf_quant_config.json");
  const auto read = ReadWeightQuantization(config, &fp8);
  ASSERT_TRUE(read.ok() && read->has_value()) << read.status();
  EXPECT_EQ((*read)->method, "modelopt");
  EXPECT_TRUE((*read)->has_kv_scheme);
  file["quantization"]["quant_algo"] = nullptr;
  const common::JsonReader kv_alone = Object(file, "hf_quant_config.json");
  EXPECT_FALSE((*ReadWeightQuantization(config, &kv_alone)).has_value());
  file["quantization"]["quant_algo"] = "W4A8_NVFP4";
  const common::JsonReader other = Object(file, "hf_quant_config.json");
  const auto refused = ReadWeightQuantization(config, &other);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("hf_quant_config.json"), HasSubstr("W4A8_NVFP4")));
  file["quantization"]["quant_algo"] = "NVFP4";
  file["quantization"]["group_size"] = 16;
  const common::JsonReader nvfp4 = Object(file, "hf_quant_config.json");
  const auto floats = ReadWeightQuantization(config, &nvfp4);
  ASSERT_TRUE(floats.ok() && floats->has_value()) << floats.status();
  EXPECT_EQ((*floats)->ToString(), kModelOptNvfp4.ToString());
  EXPECT_TRUE((*floats)->has_kv_scheme);
}

TEST(WeightQuantizationTest, OthersAreRefusedByName) {
  for (const char* method : {"bitsandbytes", "mxfp4", "fbgemm_fp8", "hqq"}) {
    ExpectUnsupported({{"quant_method", method}, {"bits", 4}}, "quant_method", method);
  }
  for (const char* algorithm : {"NVFP4_AWQ", "W4A8_AWQ", "MIXED_PRECISION"}) {
    ExpectUnsupported({{"quant_method", "modelopt"}, {"quant_algo", algorithm}}, "quant_algo",
                      algorithm);
  }
  for (const char* format : {"int-quantized", "mxfp8-quantized", "mixed-precision"}) {
    json settings = CompressedTensors("channel");
    settings["format"] = format;
    ExpectUnsupported(settings, "format", format);
  }
  json settings = CompressedTensors("channel");
  json& weights = settings["config_groups"]["group_0"]["weights"];
  weights["type"] = "int";
  ExpectUnsupported(settings, "num_bits", "8 bits, type \"int\"");
  settings = CompressedTensors("group");
  ExpectUnsupported(settings, "strategy", "group");
  settings = CompressedTensors("block");
  settings["config_groups"]["group_0"]["weights"]["block_structure"] = {64, 128};
  ExpectUnsupported(settings, "block_structure", "128 x 128");
  settings = CompressedTensors("channel");
  settings["sparsity_config"] = {{"format", "sparse-24-bitmask"}};
  ExpectUnsupported(settings, "sparsity_config", "not supported");
  settings = CompressedTensors("channel");
  settings["config_groups"]["group_1"] = CompressedTensors("tensor")["config_groups"]["group_0"];
  ExpectUnsupported(settings, "config_groups", "several");
  ExpectUnsupported({{"quant_method", "fp8"}, {"fmt", "e5m2"}}, "fmt", "e5m2");
  ExpectUnsupported({{"quant_method", "fp8"}, {"weight_block_size", {1, 128}}}, "weight_block_size",
                    "128 x 128");
}

json Packed(const std::string& strategy, bool symmetric, const json& group_size) {
  json settings = CompressedTensors(strategy);
  settings["format"] = "pack-quantized";
  json& weights = settings["config_groups"]["group_0"]["weights"];
  weights["num_bits"] = 4;
  weights["type"] = "int";
  weights["symmetric"] = symmetric;
  weights["group_size"] = group_size;
  weights["actorder"] = "group";
  return settings;
}

const json kAwq = {{"quant_method", "awq"}, {"bits", 4},
                   {"group_size", 128},     {"zero_point", true},
                   {"version", "gemm"},     {"modules_to_not_convert", nullptr}};
const json kGptq = {{"quant_method", "gptq"},
                    {"bits", 4},
                    {"group_size", 64},
                    {"desc_act", true},
                    {"sym", true},
                    {"checkpoint_format", "gptq"},
                    {"pack_dtype", "int32"},
                    {"lm_head", false},
                    {"dynamic", json::object()},
                    {"damp_percent", 0.01},
                    {"true_sequential", true}};

json With(json settings, const char* key, const json& value) {
  settings[key] = value;
  return settings;
}

TEST(WeightQuantizationTest, EachFormOfFourBitsIsRead) {
  struct Form {
    json settings;
    StoredForm stored;
    const char* text;
  };
  const Form forms[] = {{kAwq, AwqInt4(128), "int4 (awq, a scale for each 128 input features)"},
                        {With(kAwq, "version", "GEMM"), AwqInt4(128), nullptr},
                        {With(kAwq, "group_size", 32), AwqInt4(32), nullptr},
                        {kGptq, GptqInt4(64, 1), "int4 (gptq, a scale for each 64 input features)"},
                        {With(kGptq, "checkpoint_format", "gptq_v2"), GptqInt4(64, 0), nullptr},
                        {With(kGptq, "group_size", -1), GptqInt4(0, 1),
                         "int4 (gptq, a scale for each output feature)"},
                        {Packed("group", true, 128), CompressedInt4(128, false), nullptr},
                        {Packed("group", false, 32), CompressedInt4(32, true), nullptr},
                        {Packed("channel", true, nullptr), CompressedInt4(0, false),
                         "int4 (compressed-tensors, a scale for each output feature)"}};
  for (const Form& form : forms) {
    const auto read = Read(form.settings);
    ASSERT_TRUE(read.ok() && read->has_value()) << read.status() << form.settings;
    const StoredForm& got = (*read)->form;
    EXPECT_EQ(got.codes_end, form.stored.codes_end) << form.settings;
    EXPECT_EQ(got.zeros_end, form.stored.zeros_end) << form.settings;
    EXPECT_EQ(got.scale_cols, form.stored.scale_cols) << form.settings;
    EXPECT_EQ(got.form.group_cols, form.stored.form.group_cols) << form.settings;
    EXPECT_EQ(got.form.has_zeros, form.stored.form.has_zeros) << form.settings;
    EXPECT_EQ(got.zeros_add, form.stored.zeros_add) << form.settings;
    EXPECT_TRUE(got.order == form.stored.order) << form.settings;
    if (form.text != nullptr) {
      EXPECT_EQ((*read)->ToString(), form.text);
    }
  }
}

TEST(WeightQuantizationTest, OtherFormsOfFewBitsAreRefusedByName) {
  for (const int bits : {2, 3, 8}) {
    const std::string named = absl::StrCat(bits, " bits");
    ExpectUnsupported(With(kAwq, "bits", bits), "bits", named);
    ExpectUnsupported(With(kGptq, "bits", bits), "bits", named);
    json packed = Packed("group", true, 128);
    packed["config_groups"]["group_0"]["weights"]["num_bits"] = bits;
    ExpectUnsupported(packed, "num_bits", named);
  }
  ExpectUnsupported(With(kAwq, "version", "gemv"), "version", "gemv");
  ExpectUnsupported(With(kAwq, "zero_point", false), "zero_point", "false");
  ExpectUnsupported(With(kAwq, "group_size", 16), "group_size", "groups of 16");
  ExpectUnsupported(With(kGptq, "group_size", 1024), "group_size", "groups of 1024");
  ExpectUnsupported(With(kGptq, "checkpoint_format", "marlin"), "checkpoint_format", "marlin");
  ExpectUnsupported(With(kGptq, "pack_dtype", "int64"), "pack_dtype", "int64");
  ExpectUnsupported(With(kGptq, "lm_head", true), "lm_head", "true");
  ExpectUnsupported(With(kGptq, "dynamic", {{"-:.*down.*", json::object()}}), "dynamic", "unlike");
  ExpectUnsupported(Packed("tensor", true, nullptr), "strategy", "tensor");
  ExpectUnsupported(Packed("tensor_group", true, 16), "strategy", "tensor_group");
  json packed = Packed("group", true, 128);
  packed["config_groups"]["group_0"]["weights"]["type"] = "float";
  ExpectUnsupported(packed, "type", "float");
  packed = Packed("group", true, 128);
  packed["config_groups"]["group_0"]["format"] = "nvfp4-pack-quantized";
  ExpectUnsupported(packed, "format", "nvfp4-pack-quantized");
  packed = Packed("group", true, 128);
  packed["config_groups"]["group_1"] = Packed("group", true, 64)["config_groups"]["group_0"];
  ExpectUnsupported(packed, "config_groups", "several");
  json without_size = kAwq;
  without_size.erase("group_size");
  EXPECT_EQ(Read(without_size).status().code(), absl::StatusCode::kInvalidArgument);
}

json PackedFloats(const std::string& format, const std::string& strategy, int group_size) {
  json settings = Packed(strategy, true, group_size);
  settings["format"] = format;
  settings["config_groups"]["group_0"]["weights"]["type"] = "float";
  return settings;
}

TEST(WeightQuantizationTest, EachFormOfFloatsOfFourBitsIsRead) {
  const std::pair<json, Float4Form> forms[] = {
      {PackedFloats("nvfp4-pack-quantized", "tensor_group", 16), kCompressedNvfp4},
      {PackedFloats("mxfp4-pack-quantized", "group", 32), kCompressedMxfp4},
      {{{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}, kModelOptNvfp4},
      {{{"quant_algo", "NVFP4"}, {"group_size", 16}}, kModelOptNvfp4}};
  for (const auto& [settings, form] : forms) {
    const auto read = Read(settings);
    ASSERT_TRUE(read.ok() && read->has_value()) << read.status() << settings;
    ASSERT_TRUE((*read)->float4.has_value()) << settings;
    EXPECT_EQ((*read)->ToString(), form.ToString());
    EXPECT_EQ((*read)->float4->global_end, form.global_end);
    EXPECT_EQ((*read)->float4->global_divides, form.global_divides);
    EXPECT_EQ((*read)->float4->scale_type, form.scale_type);
  }
  EXPECT_FALSE((*Read(Packed("group", true, 128)))->float4.has_value());
}

TEST(WeightQuantizationTest, OtherFloatsOfFourBitsAreRefusedByName) {
  const std::string nvfp4 = "nvfp4-pack-quantized";
  ExpectUnsupported(PackedFloats(nvfp4, "group", 16), "strategy", "group");
  ExpectUnsupported(PackedFloats("mxfp4-pack-quantized", "tensor_group", 32), "strategy",
                    "tensor_group");
  ExpectUnsupported(PackedFloats(nvfp4, "tensor_group", 32), "group_size", "groups of 32");
  ExpectUnsupported(PackedFloats("mxfp4-pack-quantized", "group", 16), "group_size",
                    "groups of 16");
  ExpectUnsupported({{"quant_algo", "NVFP4"}, {"group_size", 32}}, "group_size", "groups of 32");
  for (const auto& [key, value, named] : {std::tuple("num_bits", json(8), "8 bits"),
                                          {"type", json("int"), "int"},
                                          {"symmetric", json(false), "false"},
                                          {"dynamic", json(true), "true"}}) {
    json settings = PackedFloats(nvfp4, "tensor_group", 16);
    settings["config_groups"]["group_0"]["weights"][key] = value;
    ExpectUnsupported(settings, key, named);
  }
}

TEST(WeightQuantizationTest, NonsenseIsRefused) {
  const json settings[] = {json::object(),
                           {{"quant_method", 8}},
                           {{"quant_method", "compressed-tensors"}},
                           {{"quant_method", "compressed-tensors"},
                            {"format", "float-quantized"},
                            {"config_groups", json::object()}},
                           {{"quant_method", "compressed-tensors"},
                            {"format", "float-quantized"},
                            {"config_groups", {{"group_0", {{"weights", nullptr}}}}}},
                           {{"quant_method", "fp8"}, {"weight_block_size", "128"}},
                           {{"quant_method", "modelopt"}}};
  for (const json& value : settings) {
    EXPECT_EQ(Read(value).status().code(), absl::StatusCode::kInvalidArgument) << value;
  }
  EXPECT_EQ(Read("fp8").status().code(), absl::StatusCode::kInvalidArgument);
  json many = CompressedTensors("channel");
  for (int i = 0; i < 100; ++i) {
    many["config_groups"][absl::StrCat("g", i)] = many["config_groups"]["group_0"];
  }
  EXPECT_EQ(Read(many).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace retroinfer
