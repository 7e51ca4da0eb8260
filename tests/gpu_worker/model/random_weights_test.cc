#include "gpu_worker/model/random_weights.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "gpu_worker/model/model_shapes.h"
#include "gpu_worker/model/transformer.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using namespace test_support;

class RandomWeightsTest : public testing::TestWithParam<BackendParam> {
 protected:
  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(RandomWeightsTest, HaveTheShapesOfTheModel) {
  ModelConfig config = *NamedModelShape("tiny");
  config.qkv_bias = true;
  const auto weights = RandomModelWeights(*backend_->device, backend_->ops->model(), config);
  ASSERT_TRUE(weights.ok()) << weights.status();
  ASSERT_EQ(weights->layers.size(), config.num_layers);
  for (const LayerWeights& layer : weights->layers) {
    EXPECT_EQ(layer.qkv->out_features(), config.query_size() + 2 * config.kv_size());
    EXPECT_EQ(layer.gate_up->out_features(), 2 * config.intermediate_size);
    EXPECT_EQ(layer.down->in_features(), config.intermediate_size);
  }
  EXPECT_EQ(weights->lm_head->out_features(), config.vocab_size);
  EXPECT_EQ(weights->embedding.rows, config.vocab_size);
}

TEST_P(RandomWeightsTest, AModelOfThemComputesFiniteLogitsThatDiffer) {
  const ModelConfig config = *NamedModelShape("tiny");
  const auto model = Transformer::LoadRandom(
      *backend_->device, *backend_->ops, config,
      {.max_prefill_rows = 1, .max_decode_rows = 2, .max_positions = 0, .progress = {}});
  ASSERT_TRUE(model.ok()) << model.status();
  const DeviceBuffer ids = data_.Upload(std::vector<int32_t>{3, 400});
  const DeviceBuffer positions = data_.Upload(std::vector<int32_t>{0, 7});
  const auto logits =
      data_.UploadMatrix(std::vector<float>(static_cast<size_t>(2 * config.vocab_size), kNan), 2,
                         config.vocab_size, DType::kF32);
  // In the place of attention: something that depends on the queries.
  const auto attention = [&](uint32_t, const MatrixView& queries, const MatrixView&,
                             const MatrixView&, const MatrixView& out) {
    return backend_->ops->model().SiluMul(*backend_->stream,
                                          {.gate = queries, .up = queries, .out = out});
  };
  ASSERT_TRUE((*model)
                  ->Decode(*backend_->stream, ids.as<const int32_t>(),
                           positions.as<const int32_t>(), attention, logits.view)
                  .ok());
  const std::vector<float> values = data_.Values(logits);
  for (const float value : values) ASSERT_TRUE(std::isfinite(value));
  EXPECT_NE(values[5], values[static_cast<size_t>(config.vocab_size) + 5]);
  EXPECT_NE(values[5], values[6]);
}

// The same numbers in every release: what was measured or recorded with them stays comparable.
TEST_P(RandomWeightsTest, AreWhatTheyAlwaysWere) {
  constexpr size_t kDrawn = size_t{1} << 22;
  constexpr int64_t kShift = 4096;
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0.0f, 0.02f);
  std::vector<float> drawn(kDrawn);
  for (float& number : drawn) number = FromBf16(ToBf16(normal(generator)));

  ModelConfig config = *NamedModelShape("tiny");
  config.qkv_bias = true;
  config.num_layers = 5;  // so many matrices that one begins at the first number again
  const auto weights = RandomModelWeights(*backend_->device, backend_->ops->model(), config);
  ASSERT_TRUE(weights.ok()) << weights.status();
  const int64_t num_numbers = 512 * 128 + 16 * kShift;
  int64_t at = 0;
  const auto next = [&](int64_t elements) {
    at = at + kShift <= num_numbers - elements ? at + kShift : 0;
    return at;
  };
  const auto expect = [&](const PreparedLinear& linear, bool has_bias) {
    const int64_t in = linear.in_features();
    const int64_t out = linear.out_features();
    const int64_t weight = next(in * out);
    const int64_t bias = has_bias ? next(out) : 0;
    std::vector<float> one(static_cast<size_t>(in));
    one[3] = 1;
    const auto x = data_.Activations(one, 1, in);
    const auto y = data_.Poisoned(1, out);
    ASSERT_TRUE(backend_->ops->model()
                    .Linear(*backend_->stream,
                            {.linear = &linear, .in = x.view, .out = y.view, .decode = true})
                    .ok());
    const std::vector<float> values = data_.Values(y);
    for (int64_t row = 0; row < out; row += 37) {
      float expected = drawn[static_cast<size_t>(weight + row * in + 3)];
      if (has_bias) expected += drawn[static_cast<size_t>(bias + row)];
      // Activations of a backend may be bf16.
      ASSERT_NEAR(values[static_cast<size_t>(row)], expected, 1e-3) << row << " of " << out;
    }
  };
  for (const LayerWeights& layer : weights->layers) {
    expect(*layer.qkv, true);
    expect(*layer.o, false);
    expect(*layer.gate_up, false);
    expect(*layer.down, false);
  }
  expect(*weights->lm_head, false);
}

TEST_P(RandomWeightsTest, ExpertsAreKeptAsAskedAndRoutersAreNumbers) {
  const ModelConfig config = *NamedModelShape("tiny-experts");
  for (const KeptWeights keep : {KeptWeights::kAsStored, KeptWeights::kFp8, KeptWeights::kInt4}) {
    const auto weights =
        RandomModelWeights(*backend_->device, backend_->ops->model(), config, keep);
    ASSERT_TRUE(weights.ok()) << weights.status();
    for (const LayerWeights& layer : weights->layers) {
      EXPECT_EQ(layer.router->out_features(), config.experts.count);
      EXPECT_EQ(layer.gate_up->num_parts(), 2 * config.experts.count);
      EXPECT_EQ(layer.gate_up->out_features(), 2 * config.experts.count * config.intermediate_size);
      EXPECT_EQ(layer.down->out_features(), config.experts.count * config.hidden_size);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, RandomWeightsTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
