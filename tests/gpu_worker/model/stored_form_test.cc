#include "gpu_worker/model/stored_form.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <list>
#include <map>
#include <random>
#include <tuple>

#include "gpu_worker/model/fingerprint.h"
#include "gpu_worker/model/kept_weights.h"
#include "gpu_worker/model/model_shapes.h"
#include "gpu_worker/model/model_weights.h"
#include "gpu_worker/ops/backend/cpu/cpu_needs.h"
#include "gpu_worker/ops/backend/cuda/cuda_needs.h"
#include "tests/gpu_worker/model/safetensors_text.h"
#include "tests/support/added_weight_forms.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using namespace test_support;
using ::testing::HasSubstr;
using Shape = std::vector<int64_t>;

constexpr char kGate[] = "model.layers.0.mlp.gate_proj.";

TEST(StoredFormTest, TensorsAndShapesOfAMatrixFollow) {
  const Shape matrix = {200, 300};
  const CodedTensors fp8 = kFp8OfBlocksInverse.NamesOf("a.weight");
  EXPECT_EQ(fp8.codes, "a.weight");
  EXPECT_EQ(fp8.scales, "a.weight_scale_inv");
  EXPECT_EQ(fp8.zeros, "");
  EXPECT_EQ(kFp8OfBlocks.CodesShape(matrix), matrix);
  EXPECT_EQ(kFp8OfBlocks.ScalesShapes(matrix), (std::vector<Shape>{{2, 3}}));
  EXPECT_EQ(kFp8OfFeatures.ScalesShapes(matrix), (std::vector<Shape>{{200, 1}, {200}}));
  EXPECT_EQ(kFp8OfMatrices.ScalesShapes(matrix), (std::vector<Shape>{{}, {1}, {1, 1}}));
  EXPECT_TRUE(kFp8OfMatrices.ScalesRows() && kFp8OfFeatures.ScalesRows());
  EXPECT_FALSE(kFp8OfBlocks.ScalesRows());

  const CodedTensors int4 = kInt4OfGroups.NamesOf("a.weight");
  EXPECT_EQ(int4.codes, "a.weight_packed");
  EXPECT_EQ(int4.zeros, "a.weight_zero_point");
  EXPECT_EQ(kInt4OfGroups.CodesShape(matrix), (Shape{200, 38}));
  EXPECT_EQ(kInt4OfGroups.ScalesShapes(matrix), (std::vector<Shape>{{200, 10}}));
  EXPECT_EQ(kInt4OfGroups.ZerosShape(matrix), (Shape{200, 2}));
  EXPECT_EQ(kInt8OfFeatures.CodesShape(matrix), (Shape{200, 75}));
}

// Forms that only this test defines go through all of loading: nothing else of the product names a
// form of the CPU.
class AddedFormTest : public testing::TestWithParam<std::tuple<BackendParam, StoredForm>> {
 protected:
  AddedFormTest() {
    config_ = *NamedModelShape("tiny");
    config_.num_layers = 1;
    config_.intermediate_size = 136;  // fills neither words nor groups of the down projection
    config_.qkv_bias = true;
    config_.dtype = DType::kBf16;
    const ModelTable table(config_);
    for (const auto& [name, stored] : table.stored()) {
      if (stored.may_be_rounded()) {
        AddCodes(name, stored.shape);
        continue;
      }
      int64_t count = 1;
      for (const int64_t extent : stored.shape) count *= extent;
      const TensorText text = {name, "F32", stored.shape, Floats(Drawn(count, 0.1f))};
      coded_[name] = numbers_[name] = text;
    }
  }

  static std::string Floats(const std::vector<float>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  }
  std::vector<float> Drawn(int64_t count, float deviation) {
    return RandomNormal(static_cast<size_t>(count), seed_++, deviation);
  }

  // Random codes, and the numbers that they stand for.
  void AddCodes(const std::string& name, const Shape& shape) {
    const StoredForm& stored = form_;
    const WeightForm& form = stored.form;
    const CodedTensors names = stored.NamesOf(name);
    const int64_t each = stored.scale_cols == 0 ? shape[1] : stored.scale_cols;
    const int64_t groups = (shape[1] + each - 1) / each;
    std::vector<float> scales = Drawn(shape[0] * groups, 0.5f);
    // Channels of keys that are large, so that there is something to balance.
    for (size_t i = 0; i < scales.size(); ++i) {
      const bool large = name.find("k_proj") != std::string::npos && i / groups % 32 == 5;
      scales[i] = std::exp2(scales[i]) * (large ? 0.5f : 0.01f);
    }
    std::mt19937 random(seed_++);
    const auto bytes = [&random](size_t count) {
      std::string text(count, '\0');
      for (char& byte : text) byte = static_cast<char>(random());
      return text;
    };
    const std::string codes = bytes(form.Bytes(shape[0], shape[1]));
    const std::string zeros = form.has_zeros ? bytes(form.Bytes(shape[0], groups)) : "";
    const auto decoded = [&](const std::string& text, int64_t row, int64_t count) {
      std::vector<float> values(static_cast<size_t>(count));
      form.decode(reinterpret_cast<const std::byte*>(text.data()) + form.Bytes(row, count), count,
                  values.data());
      return values;
    };
    std::vector<float> numbers;
    for (int64_t row = 0; row < shape[0]; ++row) {
      const std::vector<float> of_row = decoded(codes, row, shape[1]);
      const std::vector<float> zeros_of_row = zeros.empty()
                                                  ? std::vector<float>(static_cast<size_t>(groups))
                                                  : decoded(zeros, row, groups);
      for (int64_t col = 0; col < shape[1]; ++col) {
        const int64_t group = col / each;
        numbers.push_back(
            (of_row[static_cast<size_t>(col)] - zeros_of_row[static_cast<size_t>(group)]) *
            scales[static_cast<size_t>(row * groups + group)]);
      }
    }
    numbers_[name] = {name, "F32", shape, Floats(numbers)};
    coded_[names.codes] = {names.codes, "I32", stored.CodesShape(shape), codes};
    coded_[names.scales] = {names.scales, "F32", stored.ScalesShapes(shape)[0], Floats(scales)};
    if (!zeros.empty()) {
      coded_[names.zeros] = {names.zeros, "I32", stored.ZerosShape(shape), zeros};
    }
  }

  using Texts = std::map<std::string, TensorText>;
  absl::StatusOr<Checkpoint> Open(const Texts& texts) {
    std::vector<TensorText> list;
    for (const auto& [name, text] : texts) list.push_back(text);
    folders_.emplace_back().Write("model.safetensors", SafetensorsText(list));
    return Checkpoint::Open(folders_.back().path());
  }
  ModelConfig CodedConfig() const {
    ModelConfig config = config_;
    config.quantization = {form_, "test"};
    return config;
  }
  absl::Status Check(const Texts& texts) {
    const auto checkpoint = Open(texts);
    return checkpoint.ok() ? CheckTensors(CodedConfig(), *checkpoint) : checkpoint.status();
  }
  std::vector<float> Multiply(const PreparedLinear& linear) {
    const int64_t in = linear.in_features();
    const auto x = data_.Activations(RandomNormal(static_cast<size_t>(in), 9), 1, in);
    const auto y = data_.Poisoned(1, linear.out_features());
    EXPECT_TRUE(backend_->ops->model()
                    .Linear(*backend_->stream,
                            {.linear = &linear, .in = x.view, .out = y.view, .decode = true})
                    .ok());
    return data_.Values(y);
  }

  const StoredForm form_ = std::get<1>(GetParam());
  std::unique_ptr<Backend> backend_ = std::get<0>(GetParam()).create();
  DeviceData data_{*backend_};
  uint64_t seed_ = 1;
  std::list<TempFolder> folders_;
  ModelConfig config_;
  Texts coded_;
  Texts numbers_;
};

TEST_P(AddedFormTest, LoadsAsTheNumbersThatItStandsFor) {
  const auto numbers = Open(numbers_);
  const auto coded = Open(coded_);
  ASSERT_TRUE(numbers.ok() && coded.ok()) << coded.status();
  const ModelConfig config = CodedConfig();
  ASSERT_TRUE(CheckTensors(config, *coded).ok()) << CheckTensors(config, *coded);
  const ChannelBalance balance = ChannelBalance::Of(config, *coded, 1);
  EXPECT_GT(balance.num_changed(), 0);
  EXPECT_EQ(balance.exponents(), ChannelBalance::Of(config_, *numbers, 1).exponents());
  for (const WeightSource source : {WeightSource::kMapping, WeightSource::kReading}) {
    const auto weights = LoadModelWeights(*backend_->device, backend_->ops->model(), config, *coded,
                                          {.source = source}, KeptWeights::kAsStored, balance);
    if (!std::get<0>(GetParam()).name.starts_with("Cpu")) {
      EXPECT_EQ(weights.status().code(), absl::StatusCode::kUnimplemented);
      EXPECT_THAT(std::string(weights.status().message()), HasSubstr(std::string(form_.form.name)));
      continue;
    }
    ASSERT_TRUE(weights.ok()) << weights.status();
    const auto expected =
        LoadModelWeights(*backend_->device, backend_->ops->model(), config_, *numbers,
                         {.source = source}, KeptWeights::kNumbers, balance);
    ASSERT_TRUE(expected.ok()) << expected.status();
    EXPECT_EQ(Multiply(*weights->layers[0].qkv), Multiply(*expected->layers[0].qkv));
    EXPECT_EQ(Multiply(*weights->layers[0].o), Multiply(*expected->layers[0].o));
    EXPECT_EQ(Multiply(*weights->layers[0].gate_up), Multiply(*expected->layers[0].gate_up));
    EXPECT_EQ(Multiply(*weights->layers[0].down), Multiply(*expected->layers[0].down));
  }
}

TEST_P(AddedFormTest, WhatIsMissingOrElseIsNamed) {
  EXPECT_TRUE(Check(coded_).ok()) << Check(coded_);
  std::vector<std::string> names = {kGate + std::string(form_.codes_end),
                                    kGate + std::string(form_.scales_end)};
  if (form_.form.has_zeros) names.push_back(kGate + std::string(form_.zeros_end));
  for (const std::string& name : names) {
    Texts texts = coded_;
    texts.erase(name);
    const absl::Status missing = Check(texts);
    EXPECT_EQ(missing.code(), absl::StatusCode::kInvalidArgument);
    // Without codes a checkpoint may have the numbers.
    EXPECT_THAT(std::string(missing.message()),
                HasSubstr(name.ends_with("packed") ? kGate + std::string("weight") : name));
    texts = coded_;
    texts[name].shape.push_back(1);
    EXPECT_THAT(std::string(Check(texts).message()), HasSubstr("\"" + name + "\" has shape"));
  }
  // Numbers beside codes would be ignored.
  Texts texts = coded_;
  const std::string both = kGate + std::string("weight");
  texts[both] = numbers_[both];
  EXPECT_THAT(std::string(Check(texts).message()), HasSubstr("\"" + both + "\" is no part"));
  // Numbers instead of codes are what a quantized checkpoint left as they were.
  for (const std::string& name : names) texts.erase(name);
  EXPECT_TRUE(Check(texts).ok()) << Check(texts);
}

TEST_P(AddedFormTest, SizesNamesAndFingerprintFollow) {
  const ModelConfig config = CodedConfig();
  const auto coded = Open(coded_);
  ASSERT_TRUE(coded.ok());
  EXPECT_EQ(WeightsDtype(config, KeptWeights::kAsStored), form_.form.name);
  EXPECT_THAT(WeightScalesFrom(config, KeptWeights::kAsStored),
              HasSubstr(std::string(form_.scales_are)));
  EXPECT_FALSE(KeptWeightsNamed("fp8", config).ok());
  EXPECT_TRUE(CheckWeightForm(config, kCpuNeeds).ok());
  const absl::Status refused = CheckWeightForm(config, kCudaNeeds);
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(refused.message()), HasSubstr(std::string(form_.form.name)));
  EXPECT_EQ(*KeptWeightsNamed("bf16", config), KeptWeights::kNumbers);
  // A backend that keeps codes as they are.
  BackendNeeds needs = kCpuNeeds;
  needs.weight_bytes = [](const WeightForm& form, int64_t in, int64_t out) {
    return form.Bytes(out, in);
  };
  const size_t in_codes = KeptWeightBytes(config, *coded, KeptWeights::kAsStored, needs);
  EXPECT_LT(in_codes, coded->total_bytes() + (size_t{1} << 16));  // zeros are a byte each
  EXPECT_GE(in_codes, coded->total_bytes() * 9 / 10);
  EXPECT_GT(KeptWeightBytes(config, *coded, KeptWeights::kNumbers, needs), in_codes);

  ModelConfig other = config;
  other.quantization->form.form.id = WeightFormId::kE4m3;
  EXPECT_NE(*ModelFingerprint(config, *coded, {}), *ModelFingerprint(other, *coded, {}));
}

INSTANTIATE_TEST_SUITE_P(Backends, AddedFormTest,
                         testing::Combine(testing::ValuesIn(AvailableBackends()),
                                          testing::Values(kInt8OfFeatures, kInt4OfGroups)),
                         [](const auto& info) {
                           return std::get<0>(info.param).name +
                                  std::string(std::get<1>(info.param).form.name);
                         });

}  // namespace
}  // namespace retroinfer
