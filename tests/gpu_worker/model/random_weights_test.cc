#include "gpu_worker/model/random_weights.h"

#include <gtest/gtest.h>

#include <cmath>
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

INSTANTIATE_TEST_SUITE_P(Backends, RandomWeightsTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
