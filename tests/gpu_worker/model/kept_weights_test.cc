#include "gpu_worker/model/kept_weights.h"

#include <gtest/gtest.h>

#include <tuple>

#include "gpu_worker/model/model_shapes.h"
#include "gpu_worker/ops/backend/cpu/cpu_needs.h"
#include "gpu_worker/ops/backend/cuda/cuda_needs.h"
#include "gpu_worker/ops/model/int4.h"
#include "tests/gpu_worker/model/golden_model.h"

namespace retroinfer {
namespace {

using test_support::GoldenModel;

constexpr KeptWeights kAsStored = KeptWeights::kAsStored;

TEST(KeptWeightsTest, NamesAskForWhatIsNotThereYet) {
  ModelConfig bf16;
  bf16.dtype = DType::kBf16;
  ModelConfig f32;
  f32.dtype = DType::kF32;
  ModelConfig quantized = bf16;
  quantized.quantization = {kFp8OfFeatures, "compressed-tensors"};
  for (const ModelConfig& config : {bf16, f32, quantized}) {
    EXPECT_EQ(*KeptWeightsNamed("auto", config), kAsStored);
    EXPECT_EQ(KeptWeightsNamed("int3", config).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(*KeptWeightsNamed("fp8", bf16), KeptWeights::kFp8);
  EXPECT_EQ(*KeptWeightsNamed("fp8", quantized), kAsStored);
  EXPECT_EQ(*KeptWeightsNamed("bf16", bf16), kAsStored);
  EXPECT_EQ(*KeptWeightsNamed("bf16", f32), KeptWeights::kNumbers);
  EXPECT_EQ(*KeptWeightsNamed("bf16", quantized), KeptWeights::kNumbers);
}

TEST(KeptWeightsTest, CodesOfOneFormDoNotBecomeThoseOfAnother) {
  ModelConfig bf16;
  bf16.dtype = DType::kBf16;
  ModelConfig fp8 = bf16;
  fp8.quantization = {kFp8OfFeatures, "compressed-tensors"};
  ModelConfig int4 = bf16;
  int4.quantization = {kFp8OfFeatures, "awq"};
  int4.quantization->form.form = Int4Weights(64, true);
  EXPECT_EQ(*KeptWeightsNamed("int4", bf16), KeptWeights::kInt4);
  EXPECT_EQ(*KeptWeightsNamed("int4", int4), kAsStored);
  EXPECT_EQ(*KeptWeightsNamed("bf16", int4), KeptWeights::kNumbers);
  for (const auto& [name, activations, config] : {std::tuple("int4", "bf16", &fp8),
                                                  {"fp8", "bf16", &int4},
                                                  {"auto", "fp8", &int4},
                                                  {"int4", "fp8", &bf16}}) {
    const absl::Status refused = KeptWeightsNamed(name, *config, activations).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << name << " " << activations;
  }
  EXPECT_TRUE(RoundsLayers(bf16, KeptWeights::kInt4));
  EXPECT_EQ(WeightsDtype(bf16, KeptWeights::kInt4), "int4");
  EXPECT_NE(WeightScalesFrom(bf16, KeptWeights::kInt4).find("each 128"), std::string::npos);
}

TEST(KeptWeightsTest, ActivationsInEightBitsNeedWeightsInEightBits) {
  ModelConfig bf16;
  bf16.dtype = DType::kBf16;
  ModelConfig quantized = bf16;
  quantized.quantization = {kFp8OfFeatures, "compressed-tensors"};
  EXPECT_EQ(*KeptWeightsNamed("fp8", bf16, "fp8"), KeptWeights::kFp8Products);
  EXPECT_EQ(*KeptWeightsNamed("fp8", quantized, "fp8"), KeptWeights::kFp8Products);
  EXPECT_EQ(*KeptWeightsNamed("auto", quantized, "fp8"), KeptWeights::kFp8Products);
  EXPECT_EQ(*KeptWeightsNamed("fp8", bf16, "bf16"), KeptWeights::kFp8);
  for (const auto& [weights, activations] :
       {std::pair("auto", "fp8"), {"bf16", "fp8"}, {"fp8", "int8"}}) {
    EXPECT_EQ(KeptWeightsNamed(weights, bf16, activations).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(KeptWeightsNamed("bf16", quantized, "fp8").status().code(),
            absl::StatusCode::kInvalidArgument);
  // What a quantized checkpoint left as numbers stays numbers.
  EXPECT_TRUE(RoundsLayers(bf16, KeptWeights::kFp8Products));
  EXPECT_FALSE(RoundsLayers(quantized, KeptWeights::kFp8Products));
  EXPECT_FALSE(RoundsLayers(bf16, kAsStored));
  EXPECT_EQ(WeightsDtype(bf16, KeptWeights::kFp8Products), "fp8");
  EXPECT_NE(WeightScalesFrom(quantized, KeptWeights::kFp8Products).find("activations"),
            std::string::npos);
}

TEST(KeptWeightsTest, TheTypeIsThatOfTheLayers) {
  ModelConfig config;
  config.dtype = DType::kF16;
  EXPECT_EQ(WeightsDtype(config, kAsStored), "f16");
  EXPECT_EQ(WeightsDtype(config, KeptWeights::kFp8), "fp8");
  EXPECT_EQ(WeightScalesFrom(config, kAsStored), "");
  EXPECT_NE(WeightScalesFrom(config, KeptWeights::kFp8).find("while loading"), std::string::npos);
  config.quantization = {kFp8OfBlocksInverse, "fp8"};
  EXPECT_EQ(WeightsDtype(config, kAsStored), "fp8");
  EXPECT_EQ(WeightsDtype(config, KeptWeights::kNumbers), "bf16");
  EXPECT_NE(WeightScalesFrom(config, kAsStored).find("128 x 128"), std::string::npos);
}

TEST(KeptWeightsTest, ATypeThatIsNotNamedIsThatOfTheTensors) {
  for (const auto& [name, type] : {std::pair("llama-d64-untied-bf16", DType::kBf16),
                                   {"llama-d128-tied-f16", DType::kF16},
                                   {"qwen3-d64-untied-f32", DType::kF32}}) {
    GoldenModel golden(name);
    golden.config.dtype.reset();
    EXPECT_EQ(WeightsDtype(golden.config, kAsStored), "bf16");  // of random weights
    TakeStoredType(golden.checkpoint, golden.config);
    EXPECT_EQ(golden.config.dtype, type) << name;
    golden.config.dtype = DType::kF32;  // one that is named stays
    TakeStoredType(golden.checkpoint, golden.config);
    EXPECT_EQ(golden.config.dtype, DType::kF32);
  }
}

TEST(KeptWeightsTest, EightBitsHalveTheLayersOnAGpuAndNothingOnACpu) {
  const ModelConfig config = *NamedModelShape("llama-3.1-8b");
  const size_t in_bf16 = KeptRandomWeightBytes(config, kAsStored, kCudaNeeds);
  EXPECT_EQ(in_bf16, size_t{2} * 8'030'261'248);  // as its model card counts them
  const size_t layers = size_t{32} * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336);
  const size_t in_fp8 = KeptRandomWeightBytes(config, KeptWeights::kFp8, kCudaNeeds);
  EXPECT_GT(in_fp8, in_bf16 - layers);
  EXPECT_LT(in_fp8, in_bf16 - layers + (size_t{130} << 20));  // scales, and an unpacked tile
  EXPECT_EQ(KeptRandomWeightBytes(config, KeptWeights::kFp8Products, kCudaNeeds), in_fp8);
  EXPECT_GE(KeptRandomWeightBytes(config, KeptWeights::kFp8, kCpuNeeds), in_bf16);
}

TEST(KeptWeightsTest, FourBitsAreAQuarterOfTheLayersOnAGpu) {
  const ModelConfig config = *NamedModelShape("llama-3.1-8b");
  const size_t weights = size_t{32} * (4096 * 6144 + 4096 * 4096 + 3 * 4096 * 14336);
  const size_t others = KeptRandomWeightBytes(config, kAsStored, kCudaNeeds) - 2 * weights;
  const size_t in_int4 = KeptRandomWeightBytes(config, KeptWeights::kInt4, kCudaNeeds);
  const size_t scales = weights / 128 * 4;
  EXPECT_GE(in_int4, others + weights / 2 + scales);
  EXPECT_LT(in_int4, others + weights / 2 + scales + (size_t{130} << 20));  // an unpacked tile
  EXPECT_GE(KeptRandomWeightBytes(config, KeptWeights::kInt4, kCpuNeeds), others + 2 * weights);
}

TEST(KeptWeightsTest, ExpertsAreCountedAndTheirRoutersStayNumbers) {
  const ModelConfig config = *NamedModelShape("qwen3-30b-a3b");
  const size_t experts = size_t{48} * 128 * 3 * 768 * 2048;
  const size_t attention = size_t{48} * (2048 * 5120 + 4096 * 2048);
  const size_t in_bf16 = KeptRandomWeightBytes(config, kAsStored, kCudaNeeds);
  EXPECT_EQ(in_bf16, size_t{2} * 30'532'122'624);  // as its model card counts them
  const size_t others = in_bf16 - 2 * (experts + attention);
  const size_t in_fp8 = KeptRandomWeightBytes(config, KeptWeights::kFp8, kCudaNeeds);
  EXPECT_GT(in_fp8, others + experts + attention);
  EXPECT_LT(in_fp8, others + experts + attention + (size_t{150} << 20));
  const size_t in_int4 = KeptRandomWeightBytes(config, KeptWeights::kInt4, kCudaNeeds);
  const size_t codes = (experts + attention) / 2 + (experts + attention) / 128 * 4;
  EXPECT_GE(in_int4, others + codes);
  EXPECT_LT(in_int4, others + codes + (size_t{50} << 20));
}

// They are numbers by the time that anything asks.
TEST(KeptWeightsTest, FloatsOfFourBitsTakeWhatBf16Takes) {
  const GoldenModel model("llama-nvfp4-ct");
  ASSERT_TRUE(model.config.float4.has_value() && !model.config.quantization.has_value());
  EXPECT_EQ(KeptWeightBytes(model.config, model.checkpoint, kAsStored, kCudaNeeds),
            size_t{2} * (2 * 101 * 128 + 128 * (256 + 2 * 64 + 256) + 3 * 128 * 176 + 3 * 128));
  EXPECT_LT(KeptWeightBytes(model.config, model.checkpoint, KeptWeights::kFp8, kCudaNeeds),
            KeptWeightBytes(model.config, model.checkpoint, kAsStored, kCudaNeeds));
  EXPECT_EQ(KeptForm(model.config, kAsStored), nullptr);
  EXPECT_EQ(*KeptWeightsNamed("int4", model.config), KeptWeights::kInt4);
  EXPECT_TRUE(RoundsLayers(model.config, KeptWeights::kInt4));
  EXPECT_EQ(WeightsDtype(model.config, kAsStored), "bf16");
  const std::string form = "NVFP4 (compressed-tensors, a scale for each 16 input features)";
  EXPECT_EQ(WeightScalesFrom(model.config, kAsStored), form);
  EXPECT_EQ(WeightScalesFrom(model.config, KeptWeights::kFp8),
            form + ", then fp8 (rounded while loading, a scale for each output feature)");
  EXPECT_EQ(WeightsInMemory(model.config, kAsStored, kCudaNeeds), kFloat4Note);
  EXPECT_EQ(WeightsInMemory(model.config, KeptWeights::kInt4, kCudaNeeds),
            "they stay 4 bits in memory");
  EXPECT_EQ(WeightsInMemory(model.config, KeptWeights::kFp8, kCpuNeeds),
            "in memory they become numbers");
}

TEST(KeptWeightsTest, BytesOfACheckpointFollowItsTensors) {
  const GoldenModel plain("llama-d64-untied-bf16");
  const auto bytes = [](const GoldenModel& model, KeptWeights keep, const BackendNeeds& needs) {
    return KeptWeightBytes(model.config, model.checkpoint, keep, needs);
  };
  EXPECT_EQ(bytes(plain, kAsStored, kCudaNeeds), plain.checkpoint.total_bytes());
  EXPECT_EQ(bytes(plain, kAsStored, kCpuNeeds), plain.checkpoint.total_bytes());
  const GoldenModel coded("llama-fp8-ct-channel");
  EXPECT_TRUE(CheckWeightForm(coded.config, kCudaNeeds).ok());
  EXPECT_TRUE(CheckWeightForm(plain.config, kCudaNeeds).ok());
  const size_t numbers = bytes(coded, KeptWeights::kNumbers, kCudaNeeds);
  EXPECT_GT(numbers, coded.checkpoint.total_bytes() * 3 / 2);
  EXPECT_LT(numbers, coded.checkpoint.total_bytes() * 2);
  EXPECT_GT(bytes(coded, kAsStored, kCpuNeeds), numbers);  // with the scales
}

}  // namespace
}  // namespace retroinfer
