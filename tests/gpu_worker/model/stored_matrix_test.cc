#include "gpu_worker/model/stored_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "gpu_worker/model/model_shapes.h"
#include "gpu_worker/model/model_weights.h"
#include "tests/gpu_worker/model/safetensors_text.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using namespace test_support;
using Shape = std::vector<int64_t>;

template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// A layer whose matrices are int4 in one of the forms of checkpoints, and the same as numbers.
class StoredMatrixTest : public ::testing::TestWithParam<std::pair<const char*, StoredForm>> {
 protected:
  StoredMatrixTest() {
    config_ = *NamedModelShape("tiny");
    config_.num_layers = 1;
    config_.intermediate_size = 192;
    config_.dtype = DType::kBf16;
    const ModelTable table(config_);
    for (const auto& [name, stored] : table.stored()) {
      if (stored.may_be_rounded()) {
        AddCodes(name, stored.shape);
        continue;
      }
      int64_t count = 1;
      for (const int64_t extent : stored.shape) count *= extent;
      const TensorText text = {name, "F32", stored.shape,
                               Bytes(RandomNormal(static_cast<size_t>(count), seed_++, 0.1f))};
      coded_[name] = numbers_[name] = text;
    }
  }

  static void Put(const CodeOrder& order, const Shape& matrix, int64_t row, int64_t col,
                  uint32_t code, std::vector<uint32_t>& words) {
    const CodeOrder::Place place = order.PlaceOf(row, col, matrix[0], matrix[1]);
    words[static_cast<size_t>(place.word)] |= code << place.shift;
  }

  void AddCodes(const std::string& name, const Shape& shape) {
    const CodedTensors names = form_.NamesOf(name);
    const int64_t each = form_.scale_cols == 0 ? shape[1] : form_.scale_cols;
    const int64_t num_groups = (shape[1] + each - 1) / each;
    std::vector<int32_t> groups(static_cast<size_t>(shape[1]));
    for (size_t i = 0; i < groups.size(); ++i) {
      groups[i] = static_cast<int32_t>(static_cast<int64_t>(i) / each);
    }
    // As act order has them; matrices that are multiplied as one have the same.
    std::mt19937 order(static_cast<unsigned>(shape[1]));
    if (!names.groups.empty()) std::shuffle(groups.begin(), groups.end(), order);
    const Shape of_groups = {shape[0], num_groups};
    std::vector<uint32_t> codes(form_.order.Bytes(shape[0], shape[1]) / 4);
    std::vector<uint32_t> zeros(form_.zeros_order.Bytes(shape[0], num_groups) / 4);
    std::vector<float> scales(static_cast<size_t>(shape[0] * num_groups));
    std::vector<float> numbers;
    std::mt19937 random(static_cast<unsigned>(seed_++));
    for (int64_t row = 0; row < shape[0]; ++row) {
      std::vector<int> zeros_of_row;
      std::vector<float> scales_of_row;
      const bool large = name.find("k_proj") != std::string::npos && row % 32 == 5;
      for (int64_t group = 0; group < num_groups; ++group) {
        const uint32_t zero = random() % 16;
        zeros_of_row.push_back(form_.form.has_zeros ? static_cast<int>(zero) + form_.zeros_add : 8);
        Put(form_.zeros_order, of_groups, row, group, zero, zeros);
        scales_of_row.push_back((large ? 0.3f : 0.004f) * static_cast<float>(1 + random() % 9));
        const int64_t at =
            form_.order.transposed ? group * shape[0] + row : row * num_groups + group;
        scales[static_cast<size_t>(at)] = scales_of_row.back();
      }
      for (int64_t col = 0; col < shape[1]; ++col) {
        const auto group = static_cast<size_t>(groups[static_cast<size_t>(col)]);
        const uint32_t code = random() % 16;
        Put(form_.order, shape, row, col, code, codes);
        numbers.push_back(static_cast<float>(static_cast<int>(code) - zeros_of_row[group]) *
                          scales_of_row[group]);
      }
    }
    numbers_[name] = {name, "F32", shape, Bytes(numbers)};
    coded_[names.codes] = {names.codes, "I32", form_.CodesShape(shape), Bytes(codes)};
    coded_[names.scales] = {names.scales, "F32", form_.ScalesShapes(shape)[0], Bytes(scales)};
    if (form_.form.has_zeros) {
      coded_[names.zeros] = {names.zeros, "I32", form_.ZerosShape(shape), Bytes(zeros)};
    }
    if (!names.groups.empty()) {
      coded_[names.groups] = {names.groups, "I32", {shape[1]}, Bytes(groups)};
    }
    if (!names.shape.empty()) coded_[names.shape] = {names.shape, "I64", {2}, Bytes(shape)};
  }

  using Texts = std::map<std::string, TensorText>;
  Checkpoint Open(const Texts& texts, TempFolder& folder) {
    std::vector<TensorText> list;
    for (const auto& [name, text] : texts) list.push_back(text);
    folder.Write("model.safetensors", SafetensorsText(list));
    auto checkpoint = Checkpoint::Open(folder.path());
    RI_CHECK(checkpoint.ok());
    return *std::move(checkpoint);
  }
  ModelConfig CodedConfig() const {
    ModelConfig config = config_;
    config.quantization = {form_, "test"};
    return config;
  }

  const StoredForm form_ = GetParam().second;
  uint64_t seed_ = 1;
  TempFolder coded_folder_;
  TempFolder numbers_folder_;
  ModelConfig config_;
  Texts coded_;
  Texts numbers_;
};

TEST_P(StoredMatrixTest, RowsAreTheNumbersThatCodesStandFor) {
  const Checkpoint coded = Open(coded_, coded_folder_);
  const Checkpoint numbers = Open(numbers_, numbers_folder_);
  const ModelConfig config = CodedConfig();
  ASSERT_TRUE(CheckTensors(config, coded).ok()) << CheckTensors(config, coded);
  const ModelTable table(config);
  for (const TensorRole role : {TensorRole::kQuery, TensorRole::kKey}) {
    const TensorSpec& spec = table.Get(role, 0);
    const StoredMatrix of_codes(config, coded, spec);
    const StoredMatrix of_numbers(config_, numbers, spec);
    ASSERT_EQ(of_codes.rows(), spec.shape[0]);
    for (int64_t row = 0; row < of_codes.rows(); ++row) {
      ASSERT_EQ(of_codes.Row(row), of_numbers.Row(row)) << row;
    }
  }
}

// On every backend, balanced too: the same products as the numbers have.
TEST_P(StoredMatrixTest, LoadsAsTheNumbersThatCodesStandFor) {
  const Checkpoint coded = Open(coded_, coded_folder_);
  const Checkpoint numbers = Open(numbers_, numbers_folder_);
  const ModelConfig config = CodedConfig();
  const ChannelBalance balance = ChannelBalance::Of(config, coded, 1);
  EXPECT_GT(balance.num_changed(), 0);
  EXPECT_EQ(balance.exponents(), ChannelBalance::Of(config_, numbers, 1).exponents());
  for (const BackendParam& param : AvailableBackends()) {
    const auto backend = param.create();
    DeviceData data(*backend);
    const auto multiply = [&](const PreparedLinear& linear, bool decode) {
      const int64_t in = linear.in_features();
      const auto x = data.Activations(RandomNormal(static_cast<size_t>(3 * in), 9), 3, in);
      const auto y = data.Poisoned(3, linear.out_features());
      EXPECT_TRUE(backend->ops->model()
                      .Linear(*backend->stream,
                              {.linear = &linear, .in = x.view, .out = y.view, .decode = decode})
                      .ok());
      return data.Values(y);
    };
    for (const WeightSource source : {WeightSource::kMapping, WeightSource::kReading}) {
      CheckpointHasher hasher(coded);
      const bool hashes = source == WeightSource::kReading;
      const auto weights =
          LoadModelWeights(*backend->device, backend->ops->model(), config, coded,
                           {.source = source, .hasher = hashes ? &hasher : nullptr},
                           KeptWeights::kAsStored, balance);
      ASSERT_TRUE(weights.ok()) << weights.status();
      if (hashes) {
        // Every tensor was hashed on the way.
        EXPECT_EQ(*hasher.Finish(config), *ModelFingerprint(config, coded, {}));
      }
      const auto expected = LoadModelWeights(*backend->device, backend->ops->model(), config_,
                                             numbers, {}, KeptWeights::kNumbers, balance);
      ASSERT_TRUE(expected.ok()) << expected.status();
      for (const Projection projection : ProjectionsOf(weights->layers[0].spec)) {
        auto& got = const_cast<LayerWeights&>(weights->layers[0]).Linear(projection);
        auto& want = const_cast<LayerWeights&>(expected->layers[0]).Linear(projection);
        for (const bool decode : {false, true}) {
          const std::vector<float> values = multiply(*want, decode);
          EXPECT_LE(RelativeError(multiply(*got, decode),
                                  std::vector<double>(values.begin(), values.end())),
                    param.matmul_tolerance)
              << param.name;
        }
      }
    }
  }
}

TEST_P(StoredMatrixTest, WhatIsMissingOrElseIsNamed) {
  const CodedTensors names = form_.NamesOf("model.layers.0.mlp.gate_proj.weight");
  for (const std::string& name : {names.scales, names.zeros, names.shape}) {
    if (coded_.count(name) == 0) continue;
    Texts texts = coded_;
    texts.erase(name);
    TempFolder folder;
    const Checkpoint checkpoint = Open(texts, folder);
    const absl::Status missing = CheckTensors(CodedConfig(), checkpoint);
    EXPECT_EQ(missing.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(missing.message().find(name), std::string::npos) << missing;
  }
  if (names.groups.empty()) return;
  // Groups of gate and up must be alike; those that are missing are in order, so unlike.
  Texts texts = coded_;
  texts.erase(names.groups);
  TempFolder folder;
  const Checkpoint checkpoint = Open(texts, folder);
  const absl::Status unlike = CheckTensors(CodedConfig(), checkpoint);
  const bool one_group = form_.scale_cols == 0;
  EXPECT_EQ(unlike.code(), one_group ? absl::StatusCode::kOk : absl::StatusCode::kUnimplemented)
      << unlike;
}

TEST_P(StoredMatrixTest, TheFingerprintKnowsWhatAStoredZeroLacks) {
  const Checkpoint coded = Open(coded_, coded_folder_);
  const ModelConfig config = CodedConfig();
  ModelConfig other = config;
  other.quantization->form.zeros_add ^= 1;
  EXPECT_NE(*ModelFingerprint(config, coded, {}), *ModelFingerprint(other, coded, {}));
}

INSTANTIATE_TEST_SUITE_P(
    Forms, StoredMatrixTest,
    ::testing::Values(std::pair("Awq", AwqInt4(32)), std::pair("Gptq", GptqInt4(64, 1)),
                      std::pair("GptqV2", GptqInt4(32, 0)), std::pair("GptqRows", GptqInt4(0, 1)),
                      std::pair("Compressed", CompressedInt4(64, false)),
                      std::pair("CompressedZeros", CompressedInt4(32, true)),
                      std::pair("CompressedRows", CompressedInt4(0, false)),
                      std::pair("CompressedRowsZeros", CompressedInt4(0, true))),
    [](const auto& info) { return info.param.first; });

}  // namespace
}  // namespace retroinfer
