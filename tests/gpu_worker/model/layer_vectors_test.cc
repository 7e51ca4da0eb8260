#include "gpu_worker/model/layer_vectors.h"

#include <gtest/gtest.h>

#include <cstring>

#include "tests/gpu_worker/model/golden_model.h"
#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

class LayerVectorsTest : public ::testing::TestWithParam<test_support::BackendParam> {};

TEST_P(LayerVectorsTest, EachLayerHasItsOwn) {
  const auto backend = GetParam().create();
  const std::vector<float> numbers = {1, 2, 3, 4, 5, 6};
  const auto vectors = LayerVectors::Upload(*backend->device, numbers, 3);
  ASSERT_TRUE(vectors.ok()) << vectors.status();
  EXPECT_EQ(backend->device->allocated_bytes(MemoryPurpose::kWeights), 24u);
  for (uint32_t layer = 0; layer < 3; ++layer) {
    const DeviceSpan<const float> of_layer = vectors->Of(layer);
    ASSERT_EQ(of_layer.size(), 2u);
    EXPECT_EQ(of_layer.device_data() - vectors->Of(0).device_data(), 2 * layer);
  }
  if (backend->device->info().backend == "cpu") {
    EXPECT_EQ(vectors->Of(2).device_data()[1], 6);
  }
}

TEST_P(LayerVectorsTest, ThereMayBeNone) {
  const auto backend = GetParam().create();
  const auto vectors = LayerVectors::Upload(*backend->device, {}, 3);
  ASSERT_TRUE(vectors.ok()) << vectors.status();
  EXPECT_TRUE(vectors->Of(1).empty());
  EXPECT_EQ(backend->device->allocated_bytes(MemoryPurpose::kWeights), 0u);
}

TEST(SinksTest, AreThoseOfTheModelOrNone) {
  const test_support::GoldenModel with("gptoss-d64-mxfp4");
  const std::vector<float> sinks = SinksOf(with.config, with.checkpoint);
  ASSERT_EQ(sinks.size(), 3u * 4);
  const HostTensor& second = with.checkpoint.tensors().at("model.layers.1.self_attn.sinks");
  std::vector<std::byte> memory;
  const auto bytes = second.Bytes(0, second.num_bytes(), memory);
  uint16_t bits;
  std::memcpy(&bits, bytes.data(), sizeof(bits));
  const uint32_t wide = uint32_t{bits} << 16;
  float first;
  std::memcpy(&first, &wide, sizeof(first));
  EXPECT_EQ(sinks[4], first);
  EXPECT_NE(first, 0);
  const test_support::GoldenModel without("llama-d64-untied-bf16");
  EXPECT_TRUE(SinksOf(without.config, without.checkpoint).empty());
}

INSTANTIATE_TEST_SUITE_P(Backends, LayerVectorsTest,
                         ::testing::ValuesIn(test_support::AvailableBackends()),
                         test_support::BackendName);

}  // namespace
}  // namespace retroinfer
