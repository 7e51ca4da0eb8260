#include "gpu_worker/model/model_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "tests/gpu_worker/model/golden_model.h"
#include "tests/gpu_worker/model/safetensors_text.h"
#include "tests/support/backends.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using test_support::GoldenModel;
using test_support::SafetensorsText;
using test_support::TempFolder;
using test_support::TensorText;
using ::testing::HasSubstr;

// The smallest model of each family.
ModelConfig Config(ModelFamily family) {
  ModelConfig config;
  config.family = family;
  config.hidden_size = 8;
  config.intermediate_size = 8;
  config.num_layers = 2;
  config.num_query_heads = 2;
  config.num_kv_heads = 1;
  config.head_dim = 64;
  config.vocab_size = 10;
  config.context_length = 64;
  config.rms_norm_epsilon = 1e-6f;
  config.qkv_bias = family == ModelFamily::kQwen2;
  config.qk_norm = family == ModelFamily::kQwen3 || family == ModelFamily::kQwen3Moe;
  if (family == ModelFamily::kQwen3Moe || family == ModelFamily::kMixtral) {
    config.experts = {.count = 3, .per_token = 2, .weights_sum_to_one = true};
  }
  if (family == ModelFamily::kMixtral) config.names = &kMixtralNames;
  return config;
}

std::map<std::string, TensorText> Tensors(const ModelConfig& config) {
  std::map<std::string, TensorText> tensors;
  const ModelTable table(config);
  for (const auto& [name, stored] : table.stored()) {
    const std::vector<int64_t>& shape = stored.shape;
    size_t bytes = 2;
    for (const int64_t extent : shape) bytes *= static_cast<size_t>(extent);
    tensors[name] = {name, "BF16", shape, std::string(bytes, '\x3f')};
  }
  return tensors;
}

// Loads weights from a folder of its own.
class Loader {
 protected:
  absl::StatusOr<ModelWeights> Load(const ModelConfig& config,
                                    const std::map<std::string, TensorText>& tensors) {
    std::vector<TensorText> list;
    for (const auto& [name, tensor] : tensors) list.push_back(tensor);
    folder_.Write("model.safetensors", SafetensorsText(list));
    const auto checkpoint = Checkpoint::Open(folder_.path());
    if (!checkpoint.ok()) return checkpoint.status();
    return LoadModelWeights(
        *backend_->device, backend_->ops->model(), config, *checkpoint,
        {.source = source_, .num_threads = 3, .progress = [this](size_t done, size_t total) {
           EXPECT_GT(done, done_);
           done_ = done;
           total_ = total;
         }});
  }
  void ExpectInvalid(const ModelConfig& config, const std::map<std::string, TensorText>& tensors,
                     const std::string& part) {
    const auto weights = Load(config, tensors);
    ASSERT_EQ(weights.status().code(), absl::StatusCode::kInvalidArgument) << weights.status();
    EXPECT_THAT(std::string(weights.status().message()), HasSubstr(part));
  }

  void ExpectLoads(ModelFamily family) {
    const ModelConfig config = Config(family);
    auto weights = Load(config, Tensors(config));
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(done_, total_);
    EXPECT_GT(total_, 0u);
    ASSERT_EQ(weights->layers.size(), 2u);
    EXPECT_EQ(weights->embedding.rows, 10);
    EXPECT_EQ(weights->lm_head->out_features(), 10);
    for (const LayerWeights& layer : weights->layers) {
      EXPECT_EQ(layer.qkv->out_features(), 128 + 2 * 64);
      const int64_t experts = config.experts.count;
      EXPECT_EQ(layer.gate_up->out_features(), experts == 0 ? 16 : 16 * experts);
      EXPECT_EQ(layer.gate_up->num_parts(), experts == 0 ? 1 : 2 * experts);
      EXPECT_EQ(layer.down->num_parts(), experts == 0 ? 1 : experts);
      EXPECT_EQ(layer.router == nullptr, experts == 0);
      EXPECT_EQ(layer.down->in_features(), 8);
      EXPECT_EQ(layer.q_norm.cols, config.qk_norm ? 64 : 0);
    }
  }

  std::unique_ptr<test_support::Backend> backend_ =
      test_support::AvailableBackends().front().create();
  TempFolder folder_;
  WeightSource source_ = WeightSource::kMapping;
  size_t done_ = 0;
  size_t total_ = 0;
};
class ModelWeightsTest : public ::testing::TestWithParam<ModelFamily>, protected Loader {};
class ModelWeightsFilesTest : public ::testing::Test, protected Loader {};

TEST_P(ModelWeightsTest, LoadsAndReportsProgress) {
  for (const WeightSource source : {WeightSource::kMapping, WeightSource::kReading}) {
    source_ = source;
    done_ = 0;
    ExpectLoads(GetParam());
  }
}

TEST_P(ModelWeightsTest, EveryMissingTensorIsNamed) {
  const ModelConfig config = Config(GetParam());
  for (const auto& [name, tensor] : Tensors(config)) {
    auto tensors = Tensors(config);
    tensors.erase(name);
    ExpectInvalid(config, tensors, "\"" + name + "\" is missing");
  }
}

TEST_P(ModelWeightsTest, EveryWrongShapeIsNamed) {
  const ModelConfig config = Config(GetParam());
  for (const auto& [name, tensor] : Tensors(config)) {
    auto tensors = Tensors(config);
    tensors[name].shape.push_back(1);
    ExpectInvalid(config, tensors, "\"" + name + "\" has shape");
  }
}

TEST_P(ModelWeightsTest, TensorsThatWouldBeIgnoredAreRefused) {
  const ModelConfig config = Config(GetParam());
  for (const std::string name :
       {"model.layers.0.self_attn.o_proj.bias", "model.layers.2.input_layernorm.weight",
        "model.layers.0.mlp.gate_proj.lora_A.weight", "other"}) {
    auto tensors = Tensors(config);
    tensors[name] = {name, "BF16", {1}, "xx"};
    ExpectInvalid(config, tensors, "\"" + name + "\" is no part of");
  }
  auto tensors = Tensors(config);
  const std::string harmless = "model.layers.0.self_attn.rotary_emb.inv_freq";
  tensors[harmless] = {harmless, "F32", {1}, "xxxx"};
  EXPECT_TRUE(Load(config, tensors).ok());
}

TEST_P(ModelWeightsTest, TiedEmbeddingsNeedNoOutputProjection) {
  ModelConfig config = Config(GetParam());
  const auto untied = Tensors(config);
  config.tie_word_embeddings = true;
  auto weights = Load(config, Tensors(config));
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->lm_head->out_features(), 10);
  done_ = 0;
  EXPECT_TRUE(Load(config, untied).ok());  // a copy of the table may be there
}

INSTANTIATE_TEST_SUITE_P(Families, ModelWeightsTest,
                         ::testing::Values(ModelFamily::kLlama, ModelFamily::kQwen2,
                                           ModelFamily::kQwen3, ModelFamily::kQwen3Moe,
                                           ModelFamily::kMixtral));

TEST_F(ModelWeightsFilesTest, GateAndUpMustHaveOneElementType) {
  const ModelConfig config = Config(ModelFamily::kLlama);
  auto tensors = Tensors(config);
  TensorText& gate = tensors["model.layers.1.mlp.gate_proj.weight"];
  gate.dtype = "F32";
  gate.bytes += gate.bytes;
  EXPECT_EQ(Load(config, tensors).status().code(), absl::StatusCode::kUnimplemented);
}

// Codes are refused where nothing says what they stand for.
TEST_F(ModelWeightsFilesTest, CodesNeedAForm) {
  ModelConfig config = Config(ModelFamily::kLlama);
  const std::string gate = "model.layers.1.mlp.gate_proj.weight";
  const std::string norm = "model.norm.weight";
  for (const std::string type : {"I32", "F8_E4M3"}) {
    const auto with = [&](const std::string& name) {
      auto tensors = Tensors(config);
      TensorText& tensor = tensors[name];
      tensor.dtype = type;
      tensor.bytes.resize(tensor.bytes.size() / 2 * (type == "I32" ? 4 : 1));
      return tensors;
    };
    config.quantization.reset();
    ExpectInvalid(config, with(gate),
                  gate + "\" is " + type + ", which needs a quantization_config");
    config.quantization = {kFp8OfFeatures, "fp8"};
    ExpectInvalid(config, with(norm), norm + "\" is " + type + ", which only matrices");
    if (type == "I32") ExpectInvalid(config, with(gate), "does not belong to fp8");
  }
}

TEST_F(ModelWeightsFilesTest, GoldenModelsAreWhole) {
  for (const std::string& name : test_support::GoldenModelNames()) {
    const GoldenModel model(name);
    EXPECT_TRUE(CheckTensors(model.config, model.checkpoint).ok()) << name;
  }
}

// Shapes do not tell; the matrix would be no numbers, or wrong ones.
TEST_F(ModelWeightsFilesTest, ScalesOfFloatsOfFourBitsAreCheckedWhileTheyAreRead) {
  const std::string name = "model.layers.0.mlp.down_proj.weight_global_scale";
  folder_.CopyFrom(test_support::GoldenModelFolder("llama-nvfp4-ct"));
  const std::string file = folder_.File("model.safetensors");
  std::string bytes = test_support::ReadWholeFile(file);
  uint64_t header_size;
  std::memcpy(&header_size, bytes.data(), sizeof(header_size));
  const auto header = nlohmann::json::parse(bytes.substr(8, header_size));
  const auto load = [&](WeightSource source) -> absl::Status {
    const auto config = LoadModelConfig(folder_.path());
    auto checkpoint = Checkpoint::Open(folder_.path());
    EXPECT_TRUE(config.ok() && checkpoint.ok() && UnpackFloat4(*config, *checkpoint).ok());
    return LoadModelWeights(*backend_->device, backend_->ops->model(), *config, *checkpoint,
                            {.source = source})
        .status();
  };
  EXPECT_TRUE(load(WeightSource::kReading).ok());
  bytes.replace(8 + header_size + header[name]["data_offsets"][0].get<size_t>(), 4, 4, '\0');
  folder_.Write("model.safetensors", bytes);
  for (const WeightSource source : {WeightSource::kMapping, WeightSource::kReading}) {
    const absl::Status status = load(source);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("\"" + name + "\" holds 0"));
  }
}

// Each would have an order of input features of its own.
TEST_F(ModelWeightsFilesTest, ActOrderInExpertsIsRefused) {
  const std::string name = "model.layers.0.mlp.experts.4.down_proj.g_idx";
  folder_.CopyFrom(test_support::GoldenModelFolder("qwen3moe-int4-gptq"));
  const std::string file = folder_.File("model.safetensors");
  std::string bytes = test_support::ReadWholeFile(file);
  uint64_t header_size;
  std::memcpy(&header_size, bytes.data(), sizeof(header_size));
  const auto header = nlohmann::json::parse(bytes.substr(8, header_size));
  const size_t first = 8 + header_size + header[name]["data_offsets"][0].get<size_t>();
  const size_t last = 8 + header_size + header[name]["data_offsets"][1].get<size_t>() - 4;
  std::swap_ranges(bytes.begin() + static_cast<long>(first),
                   bytes.begin() + static_cast<long>(first) + 4,
                   bytes.begin() + static_cast<long>(last));
  folder_.Write("model.safetensors", bytes);
  const auto config = LoadModelConfig(folder_.path());
  const auto checkpoint = Checkpoint::Open(folder_.path());
  ASSERT_TRUE(config.ok() && checkpoint.ok());
  const absl::Status status = CheckTensors(*config, *checkpoint);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"" + name + "\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr("act order"));
}

TEST_F(ModelWeightsFilesTest, StagingIsGivenBack) {
  const GoldenModel model("qwen2-d64-group7-mixed");
  auto weights = LoadModelWeights(*backend_->device, backend_->ops->model(), model.config,
                                  model.checkpoint, {});
  ASSERT_TRUE(weights.ok()) << weights.status();
  const size_t loaded = backend_->device->allocated_bytes(MemoryPurpose::kWeights);
  EXPECT_GT(loaded, 0u);
  // What is prepared takes at most the size of f32.
  EXPECT_LT(loaded, 3 * model.checkpoint.total_bytes());
  *weights = ModelWeights{};
  EXPECT_EQ(backend_->device->allocated_bytes(MemoryPurpose::kWeights), 0u);
}

}  // namespace
}  // namespace retroinfer
