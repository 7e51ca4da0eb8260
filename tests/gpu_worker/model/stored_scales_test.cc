// Weights in 8 bits with scales, as hostile folders have them.
#include "gpu_worker/model/stored_scales.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "gpu_worker/model/kept_weights.h"
#include "gpu_worker/model/model_weights.h"
#include "gpu_worker/ops/backend/cpu/cpu_needs.h"
#include "gpu_worker/ops/backend/cuda/cuda_needs.h"
#include "tests/gpu_worker/model/safetensors_text.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using test_support::SafetensorsText;
using test_support::TempFolder;
using test_support::TensorText;
using ::testing::HasSubstr;

constexpr char kGate[] = "model.layers.0.mlp.gate_proj.weight";
constexpr char kDown[] = "model.layers.0.mlp.down_proj.weight";

ModelConfig Config(const StoredForm& form) {
  ModelConfig config;
  config.hidden_size = 136;
  config.intermediate_size = 72;
  config.num_layers = 1;
  config.num_query_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 64;
  config.vocab_size = 10;
  config.context_length = 64;
  config.rms_norm_epsilon = 1e-6f;
  config.dtype = DType::kBf16;
  config.quantization = {form, "fp8"};
  return config;
}

std::string FloatText(float value, size_t count) {
  std::string text(count * sizeof(value), '\0');
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(text.data() + i * sizeof(value), &value, sizeof(value));
  }
  return text;
}

using Tensors = std::map<std::string, TensorText>;

std::string ScaleOf(const std::string& name) { return name + "_scale"; }

std::vector<int64_t> ScaleShape(ScaledPart part, const std::vector<int64_t>& matrix) {
  if (part == ScaledPart::kMatrix) return {};
  if (part == ScaledPart::kFeature) return {matrix[0], 1};
  return {(matrix[0] + 127) / 128, (matrix[1] + 127) / 128};
}

Tensors Quantized(const ModelConfig& config) {
  Tensors tensors;
  const ModelTable table(config);
  for (const auto& [name, stored] : table.stored()) {
    const std::vector<int64_t>& shape = stored.shape;
    size_t elements = 1;
    for (const int64_t extent : shape) elements *= static_cast<size_t>(extent);
    if (!stored.may_be_rounded()) {
      tensors[name] = {name, "BF16", shape, std::string(2 * elements, '\x3f')};
      continue;
    }
    tensors[name] = {name, "F8_E4M3", shape, std::string(elements, '\x38')};
    const auto scale_shape = ScaleShape(config.quantization->form.part, shape);
    size_t count = 1;
    for (const int64_t extent : scale_shape) count *= static_cast<size_t>(extent);
    tensors[ScaleOf(name)] = {ScaleOf(name), "F32", scale_shape, FloatText(0.5f, count)};
  }
  return tensors;
}

class StoredScalesTest : public ::testing::TestWithParam<StoredForm> {
 protected:
  absl::StatusOr<ModelWeights> Load(const Tensors& tensors,
                                    KeptWeights keep = KeptWeights::kAsStored) {
    std::vector<TensorText> list;
    for (const auto& [name, tensor] : tensors) list.push_back(tensor);
    folder_.Write("model.safetensors", SafetensorsText(list));
    const auto checkpoint = Checkpoint::Open(folder_.path());
    if (!checkpoint.ok()) return checkpoint.status();
    return LoadModelWeights(*backend_->device, backend_->ops->model(), config_, *checkpoint, {},
                            keep);
  }
  void ExpectInvalid(const Tensors& tensors, const std::string& name, const std::string& part) {
    const auto weights = Load(tensors);
    ASSERT_EQ(weights.status().code(), absl::StatusCode::kInvalidArgument) << weights.status();
    EXPECT_THAT(std::string(weights.status().message()), HasSubstr("\"" + name + "\""));
    EXPECT_THAT(std::string(weights.status().message()), HasSubstr(part));
  }

  std::unique_ptr<test_support::Backend> backend_ =
      test_support::AvailableBackends().front().create();
  TempFolder folder_;
  ModelConfig config_ = Config(GetParam());
  const Tensors good_ = Quantized(config_);
};

// Every matrix is of ones times 0.5.
TEST_P(StoredScalesTest, CodesTimesScalesAreMultiplied) {
  test_support::DeviceData data(*backend_);
  for (const KeptWeights keep : {KeptWeights::kAsStored, KeptWeights::kNumbers}) {
    const auto weights = Load(good_, keep);
    ASSERT_TRUE(weights.ok()) << weights.status();
    const PreparedLinear& gate_up = *weights->layers[0].gate_up;
    const auto x = data.Activations(std::vector<float>(136, 1.0f), 1, 136);
    const auto y = data.Poisoned(1, 144);
    ASSERT_TRUE(backend_->ops->model()
                    .Linear(*backend_->stream,
                            {.linear = &gate_up, .in = x.view, .out = y.view, .decode = true})
                    .ok());
    EXPECT_EQ(data.Values(y), std::vector<float>(144, 68.0f));
  }
}

TEST_P(StoredScalesTest, ScalesMayBeInSixteenBits) {
  Tensors tensors = good_;
  for (auto& [name, tensor] : tensors) {
    if (tensor.dtype != "F32") continue;
    const size_t count = tensor.bytes.size() / 4;
    const bool half = name == ScaleOf(kDown);
    tensor.dtype = half ? "F16" : "BF16";
    tensor.bytes.clear();
    for (size_t i = 0; i < count; ++i)
      tensor.bytes += half ? std::string("\x00\x38", 2) : std::string("\x00\x3f", 2);
  }
  test_support::DeviceData data(*backend_);
  const auto weights = Load(tensors);
  ASSERT_TRUE(weights.ok()) << weights.status();
  const auto x = data.Activations(std::vector<float>(72, 1.0f), 1, 72);
  const auto y = data.Poisoned(1, 136);
  ASSERT_TRUE(backend_->ops->model()
                  .Linear(*backend_->stream, {.linear = weights->layers[0].down.get(),
                                              .in = x.view,
                                              .out = y.view,
                                              .decode = true})
                  .ok());
  EXPECT_EQ(data.Values(y), std::vector<float>(136, 36.0f));
}

TEST_P(StoredScalesTest, AMatrixThatIsLeftOutStaysWhatItIs) {
  Tensors tensors = good_;
  tensors.erase(ScaleOf(kDown));
  tensors[kDown] = {kDown, "BF16", {136, 72}, std::string(136 * 72 * 2, '\x3f')};
  EXPECT_TRUE(Load(tensors).ok());
  // Scales without codes are somebody's mistake.
  tensors[ScaleOf(kDown)] = good_.at(ScaleOf(kDown));
  ExpectInvalid(tensors, ScaleOf(kDown), "no part of");
}

TEST_P(StoredScalesTest, MissingScalesAreNamed) {
  Tensors tensors = good_;
  tensors.erase(ScaleOf(kGate));
  ExpectInvalid(tensors, ScaleOf(kGate), "is missing");
}

TEST_P(StoredScalesTest, ScalesOfAnotherShapeOrTypeAreNamed) {
  for (const std::vector<int64_t>& shape :
       std::vector<std::vector<int64_t>>{{2}, {71, 1}, {3, 1}, {1, 3}, {0}, {72, 136}}) {
    Tensors tensors = good_;
    size_t count = 1;
    for (const int64_t extent : shape) count *= static_cast<size_t>(extent);
    tensors[ScaleOf(kGate)] = {ScaleOf(kGate), "F32", shape, FloatText(1, count)};
    ExpectInvalid(tensors, ScaleOf(kGate), "has shape");
  }
  Tensors tensors = good_;
  TensorText& scale = tensors[ScaleOf(kGate)];
  scale.dtype = "F8_E4M3";
  scale.bytes.resize(scale.bytes.size() / 4);
  ExpectInvalid(tensors, ScaleOf(kGate), "itself");
}

TEST_P(StoredScalesTest, ScalesThatAreNoPositiveNumbersAreNamed) {
  for (const float bad : {0.0f, -1.0f, std::nanf(""), HUGE_VALF}) {
    Tensors tensors = good_;
    std::string& bytes = tensors[ScaleOf(kGate)].bytes;
    std::memcpy(bytes.data() + bytes.size() - sizeof(bad), &bad, sizeof(bad));
    ExpectInvalid(tensors, ScaleOf(kGate), "above zero");
  }
}

TEST_P(StoredScalesTest, CodesThatAreNoNumbersAreNamed) {
  Tensors tensors = good_;
  tensors[kDown].bytes.back() = '\x7f';
  ExpectInvalid(tensors, kDown, "not finite");
  const auto numbers = Load(tensors, KeptWeights::kNumbers);
  EXPECT_EQ(numbers.status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(StoredScalesTest, CodesAreForMatricesOfLayersAndQuantizedCheckpointsOnly) {
  for (const char* name : {"model.embed_tokens.weight", "model.norm.weight"}) {
    Tensors tensors = good_;
    tensors[name].dtype = "F8_E4M3";
    tensors[name].bytes.resize(tensors[name].bytes.size() / 2);
    ExpectInvalid(tensors, name, "F8_E4M3");
  }
  config_.quantization.reset();
  Tensors tensors = good_;
  const auto weights = Load(tensors);
  EXPECT_EQ(weights.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(weights.status().message()), HasSubstr("quantization_config"));
}

TEST_P(StoredScalesTest, ScalesOfActivationsAndKvHaveNoEffect) {
  Tensors tensors = good_;
  for (const std::string name :
       {"model.layers.0.mlp.down_proj.input_scale", "model.layers.0.self_attn.k_proj.k_scale",
        "model.layers.0.self_attn.v_scale"}) {
    tensors[name] = {name, "F32", {}, FloatText(1, 1)};
  }
  EXPECT_TRUE(Load(tensors).ok());
  config_.quantization.reset();
  EXPECT_FALSE(Load(tensors).ok());
}

INSTANTIATE_TEST_SUITE_P(Parts, StoredScalesTest,
                         ::testing::Values(kFp8OfMatrices, kFp8OfFeatures, kFp8OfBlocks));

}  // namespace
}  // namespace retroinfer
