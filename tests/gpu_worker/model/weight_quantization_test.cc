#include "gpu_worker/model/weight_quantization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <span>

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
                    HasSubstr("--weights-dtype fp8")));
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
  file["quantization"]["quant_algo"] = "NVFP4";
  const common::JsonReader other = Object(file, "hf_quant_config.json");
  const auto refused = ReadWeightQuantization(config, &other);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr("hf_quant_config.json"), HasSubstr("NVFP4")));
}

TEST(WeightQuantizationTest, OthersAreRefusedByName) {
  for (const char* method : {"awq", "gptq", "bitsandbytes", "mxfp4", "fbgemm_fp8", "hqq"}) {
    ExpectUnsupported({{"quant_method", method}, {"bits", 4}}, "quant_method", method);
  }
  for (const char* algorithm : {"NVFP4", "W4A8_AWQ", "MIXED_PRECISION"}) {
    ExpectUnsupported({{"quant_method", "modelopt"}, {"quant_algo", algorithm}}, "quant_algo",
                      algorithm);
  }
  for (const char* format : {"int-quantized", "pack-quantized", "nvfp4-pack-quantized"}) {
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
