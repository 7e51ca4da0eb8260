#include "gpu_worker/assembly/model_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "build_paths.h"
#include "gpu_worker/device/cpu/cpu_device.h"
#include "gpu_worker/model/stored_model.h"
#include "gpu_worker/ops/backend/cpu/cpu_needs.h"
#include "gpu_worker/ops/backend/cpu/cpu_ops.h"
#include "text/tokenizer/byte_tokenizer.h"

namespace retroinfer {
namespace {

namespace fs = std::filesystem;

const std::string kNeedle = RETROINFER_SOURCE_DIR "/models/needle";
const std::string kWithoutTokenizer =
    RETROINFER_SOURCE_DIR "/tests/golden/models/llama-d64-untied-bf16";

ServedEngineOptions Dummy(const std::string& shape, const std::string& folder = "") {
  ServedEngineOptions options;
  options.load_format = "dummy";
  options.model_shape = shape;
  options.model_folder = folder;
  return options;
}

TEST(ModelSourceTest, AFolderGivesEverything) {
  ServedEngineOptions options;
  options.model_folder = kNeedle + "/";
  const auto source = ModelSource::Open(options);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(source->name(), "needle");
  EXPECT_EQ(source->config().context_length, 131'072);
  EXPECT_GT(source->WeightBytes(kCpuNeeds), size_t{1} << 20);
  EXPECT_GT(source->tokenizer().vocab_size(), 256);
}

// Under the name that hashing the mapped file gives, whichever way the weights are read.
TEST(ModelSourceTest, AGgufFileGivesEverything) {
  ServedEngineOptions options;
  options.model_folder = RETROINFER_SOURCE_DIR "/tests/golden/gguf/qwen2-00001-of-00002.gguf";
  const auto source = ModelSource::Open(options);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(source->name(), "qwen2");
  EXPECT_EQ(source->config().context_length, 131'072);
  EXPECT_EQ(source->config().dtype, DType::kBf16);
  EXPECT_TRUE(source->tokenizer().config().chat_template.has_value());
  const auto model = StoredModel::Open(options.model_folder);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto checkpoint = (*model)->OpenWeights(source->config());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(source->WeightBytes(kCpuNeeds), checkpoint->total_bytes());
  const ChannelBalance balance = ChannelBalance::Of(source->config(), *checkpoint, 1);
  const auto fingerprint = ModelFingerprint(source->config(), *checkpoint, {.balance = &balance});
  ASSERT_TRUE(fingerprint.ok()) << fingerprint.status();
  CpuDevice device({.num_threads = 1});
  CpuOps ops(device, ComputePrecision::kBf16);
  for (const WeightSource weight_source : {WeightSource::kMapping, WeightSource::kReading}) {
    const auto loaded = source->Load(device, ops.model(), weight_source, kBf16Kv);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    EXPECT_EQ(loaded->fingerprint, *fingerprint);
  }
  const auto dummy = ModelSource::Open(Dummy("", options.model_folder));
  ASSERT_TRUE(dummy.ok()) << dummy.status();
  EXPECT_EQ(dummy->name(), "qwen2");
}

TEST(ModelSourceTest, RanksLoadPartsUnderTheNameOfTheWhole) {
  CpuDevice device({.num_threads = 1});
  CpuOps ops(device, ComputePrecision::kBf16);
  ServedEngineOptions options;
  options.model_folder = kNeedle;
  const auto source = ModelSource::Open(options);
  ASSERT_TRUE(source.ok()) << source.status();
  const auto whole = source->Load(device, ops.model(), WeightSource::kReading, kBf16Kv);
  ASSERT_TRUE(whole.ok()) << whole.status();
  for (const WeightSource weight_source : {WeightSource::kMapping, WeightSource::kReading}) {
    for (const int rank : {0, 1}) {
      const auto part = source->Load(device, ops.model(), weight_source, kBf16Kv, {}, {rank, 2});
      ASSERT_TRUE(part.ok()) << part.status();
      EXPECT_EQ(part->fingerprint, rank == 0 ? whole->fingerprint : Fingerprint());
      EXPECT_EQ(part->weights.layers[0].down->in_features(),
                source->config().intermediate_size / 2);
    }
  }
  const auto bytes = source->WeightBytesOf({1, 2}, kCpuNeeds);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_LT(*bytes, source->WeightBytes(kCpuNeeds));
  EXPECT_EQ(*source->WeightBytesOf({}, kCpuNeeds), source->WeightBytes(kCpuNeeds));
  const auto refused =
      source->Load(device, ops.model(), WeightSource::kMapping, kBf16Kv, {}, {0, 3});
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kInvalidArgument) << refused.status();
  EXPECT_EQ(source->WeightBytesOf({0, 3}, kCpuNeeds).status(), refused.status());
}

TEST(ModelSourceTest, ANamedShapeNeedsNoFiles) {
  const auto source = ModelSource::Open(Dummy("llama-3.1-8b"));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(source->name(), "llama-3.1-8b");
  EXPECT_EQ(source->config().num_layers, 32u);
  EXPECT_EQ(source->WeightBytes(kCpuNeeds), size_t{2} * 8'030'261'248);  // as its model card says
  EXPECT_EQ(source->tokenizer().vocab_size(), kByteTokenizerTokens);
  EXPECT_TRUE(source->generation().eos_token_ids.empty());
  EXPECT_EQ(ModelSource::Open(Dummy("gpt-5")).status().code(), absl::StatusCode::kNotFound);
}

TEST(ModelSourceTest, AFolderMayGiveTheShapeOrTheTokenizerAlone) {
  const auto shape = ModelSource::Open(Dummy("", kWithoutTokenizer));
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->name(), "llama-d64-untied-bf16");
  EXPECT_EQ(shape->tokenizer().vocab_size(), kByteTokenizerTokens);
  const auto both = ModelSource::Open(Dummy("", kNeedle));
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_EQ(both->name(), "needle");
  const auto tokenizer = ModelSource::Open(Dummy("llama-3-8b", kNeedle));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(tokenizer->name(), "llama-3-8b");
  EXPECT_EQ(tokenizer->tokenizer().vocab_size(), both->tokenizer().vocab_size());
}

TEST(ModelSourceTest, RandomWeightsHaveNoLongestContext) {
  ServedEngineOptions options = Dummy("tiny");
  options.synthetic_context = 1'000'000;
  EXPECT_EQ(ModelSource::Open(options)->config().context_length,
            1'000'000 + ModelSource::kSyntheticRequestTokens);
  options.max_model_len = 100;
  EXPECT_EQ(ModelSource::Open(options)->config().context_length, 1'000'100);
  options.synthetic_context = 0;
  EXPECT_EQ(ModelSource::Open(options)->config().context_length, 8192);
}

TEST(ModelSourceTest, LoadsRandomWeightsUnderANameOfTheirOwn) {
  CpuDevice device({.num_threads = 1});
  CpuOps ops(device, ComputePrecision::kBf16);
  const auto random =
      ModelSource::Open(Dummy("tiny"))->Load(device, ops.model(), WeightSource::kMapping, kBf16Kv);
  ASSERT_TRUE(random.ok()) << random.status();
  EXPECT_EQ(random->weights.layers.size(), 2u);
  ServedEngineOptions options;
  options.model_folder = kNeedle;
  const auto whole =
      ModelSource::Open(options)->Load(device, ops.model(), WeightSource::kMapping, kBf16Kv);
  ASSERT_TRUE(whole.ok()) << whole.status();
  const auto dummy = ModelSource::Open(Dummy("", kNeedle))
                         ->Load(device, ops.model(), WeightSource::kMapping, kBf16Kv);
  ASSERT_TRUE(dummy.ok()) << dummy.status();
  EXPECT_NE(whole->fingerprint, dummy->fingerprint);
  EXPECT_NE(random->fingerprint, dummy->fingerprint);
  const auto read =
      ModelSource::Open(options)->Load(device, ops.model(), WeightSource::kReading, kBf16Kv);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->fingerprint, whole->fingerprint);
}

// KV of another RoPE is another.
TEST(ModelSourceTest, TheScalingOfRopeMayBeSet) {
  CpuDevice device({.num_threads = 1});
  CpuOps ops(device, ComputePrecision::kBf16);
  std::vector<std::string> names;
  for (const char* const scaling : {"", "yarn:4", "yarn:2"}) {
    ServedEngineOptions options;
    options.model_folder = kNeedle;
    options.rope_scaling = scaling;
    const auto source = ModelSource::Open(options);
    ASSERT_TRUE(source.ok()) << source.status();
    const auto loaded = source->Load(device, ops.model(), WeightSource::kMapping, kBf16Kv);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    names.push_back(FingerprintHex(loaded->fingerprint));
    if (std::string(scaling) != "yarn:4") continue;
    EXPECT_EQ(source->config().context_length, 524'288);
  }
  EXPECT_NE(names[0], names[1]);
  EXPECT_NE(names[1], names[2]);
  ServedEngineOptions dummy = Dummy("qwen2.5-7b");
  dummy.rope_scaling = "yarn:4";
  EXPECT_EQ(ModelSource::Open(dummy)->config().context_length, 131'072);
  dummy.rope_scaling = "yarn:none";
  EXPECT_EQ(ModelSource::Open(dummy).status().code(), absl::StatusCode::kInvalidArgument);
}

// KV of rounded weights is another.
TEST(ModelSourceTest, WeightsThatAreKeptOtherwiseHaveAnotherName) {
  CpuDevice device({.num_threads = 1});
  CpuOps ops(device, ComputePrecision::kBf16);
  const auto fingerprint = [&](const char* dtype, WeightSource source, bool dummy) {
    ServedEngineOptions options;
    options.model_folder = kNeedle;
    if (dummy) options = Dummy("tiny");
    options.weights_dtype = dtype;
    const auto loaded = ModelSource::Open(options)->Load(device, ops.model(), source, kBf16Kv);
    EXPECT_TRUE(loaded.ok()) << loaded.status();
    return FingerprintHex(loaded->fingerprint);
  };
  const std::string stored = fingerprint("auto", WeightSource::kMapping, false);
  const std::string rounded = fingerprint("fp8", WeightSource::kMapping, false);
  EXPECT_NE(stored, rounded);
  EXPECT_EQ(fingerprint("fp8", WeightSource::kReading, false), rounded);
  EXPECT_EQ(fingerprint("bf16", WeightSource::kMapping, false), stored);
  EXPECT_NE(fingerprint("auto", WeightSource::kMapping, true),
            fingerprint("fp8", WeightSource::kMapping, true));
  ServedEngineOptions options;
  options.model_folder = kNeedle;
  options.weights_dtype = "int3";
  EXPECT_EQ(ModelSource::Open(options).status().code(), absl::StatusCode::kInvalidArgument);
}

// Products of codes by codes want a GPU that has them, and give KV of another name.
TEST(ModelSourceTest, ActivationsInEightBitsAreRefusedOnACpu) {
  CpuDevice device({.num_threads = 1});
  CpuOps ops(device, ComputePrecision::kBf16);
  ServedEngineOptions options;
  options.model_folder = kNeedle;
  options.activations_dtype = "fp8";
  EXPECT_EQ(ModelSource::Open(options).status().code(), absl::StatusCode::kInvalidArgument)
      << "the weights are in bf16";
  options.weights_dtype = "fp8";
  const auto source = ModelSource::Open(options);
  ASSERT_TRUE(source.ok()) << source.status();
  const auto loaded = source->Load(device, ops.model(), WeightSource::kMapping, kBf16Kv);
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(loaded.status().message().find("--activations-dtype bf16"), std::string::npos)
      << loaded.status();
  EXPECT_NE(FingerprintHex(RandomModelFingerprint(source->config(), KeptWeights::kFp8)),
            FingerprintHex(RandomModelFingerprint(source->config(), KeptWeights::kFp8Products)));
}

}  // namespace
}  // namespace retroinfer
