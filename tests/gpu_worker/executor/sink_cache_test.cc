#include "gpu_worker/executor/sink_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/layer_kv_image.h"

namespace retroinfer {
namespace {

using test_support::AvailableBackends;
using test_support::Backend;
using test_support::BackendName;
using test_support::BackendParam;
using test_support::DeviceData;

constexpr KvGeometry kGeometry = {2, 2, 64, kBf16Kv};
constexpr int64_t kCapacity = 9, kRow = 3;

class SinkCacheTest : public testing::TestWithParam<BackendParam> {
 protected:
  using Prompt = std::vector<int32_t>;

  void Begin(const std::vector<Prompt>& prompts) {
    const std::vector<std::span<const int32_t>> views(prompts.begin(), prompts.end());
    cache_.Begin(views);
  }
  // A group of these prompts computes its sinks: that of prompt p in layer l has the numbers
  // p + l * 10 + `seed`.
  void Compute(const std::vector<Prompt>& prompts, float seed) {
    Begin(prompts);
    EXPECT_FALSE(cache_.knows_all());
    for (size_t i = 0; i < prompts.size(); ++i) {
      for (uint32_t layer = 0; layer < 2; ++layer) {
        ASSERT_TRUE(cache_.Write(i, layer, Filled(Number(i, layer, seed)), kRow).ok());
        ASSERT_TRUE(backend_->stream->Synchronize().ok());
      }
    }
    cache_.End();
  }
  static float Number(size_t i, uint32_t layer, float seed) {
    return static_cast<float>(i) + 10 * static_cast<float>(layer) + seed;
  }
  // What the group's i-th sink is read as.
  void ExpectSink(size_t i, float seed) {
    for (uint32_t layer = 0; layer < 2; ++layer) {
      const LayerKv out = Filled(99);
      ASSERT_TRUE(cache_.Read(i, layer, out, kRow).ok());
      for (const std::vector<float>& values : {Read(out.keys), Read(out.values)}) {
        for (size_t at = 0; at < values.size(); ++at) {
          const auto token = static_cast<int64_t>(at / 64) % kCapacity;
          const bool is_sink = token >= kRow && token < kRow + int64_t{kSinkTokens};
          ASSERT_EQ(values[at], is_sink ? Number(i, layer, seed) : 99) << "token " << token;
        }
      }
    }
  }
  LayerKv Filled(float value) {
    const std::vector<float> all(kElements, value);
    keys_ = data_.Upload(test_support::ToBytes(all, DType::kBf16));
    values_ = data_.Upload(test_support::ToBytes(all, DType::kBf16));
    return {.keys = keys_.bytes().device_data(),
            .values = values_.bytes().device_data(),
            .num_kv_heads = kGeometry.num_kv_heads,
            .head_dim = kGeometry.head_dim,
            .capacity = kCapacity,
            .dtype = DType::kBf16};
  }
  std::vector<float> Read(const std::byte* from) {
    return test_support::FromBytes(
        data_.Download(DeviceSpan<const std::byte>(from, kElements * sizeof(uint16_t))),
        DType::kBf16);
  }

  static constexpr size_t kElements = 2 * static_cast<size_t>(kCapacity) * 64;
  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
  SinkCache cache_ = *SinkCache::Create({.device = backend_->device.get(),
                                         .ops = backend_->ops.get(),
                                         .stream = backend_->stream.get()},
                                        kGeometry);
  DeviceBuffer keys_, values_;
};

TEST_P(SinkCacheTest, WhatWasComputedIsReadByPromptsThatBeginAlike) {
  Compute({{1, 2, 3, 4, 5}, {1, 2, 3, 5}}, 0.5f);
  Begin({{1, 2, 3, 4, 9, 9}, {1, 2, 3, 5}});
  ASSERT_TRUE(cache_.knows_all());
  ExpectSink(0, 0.5f);
  ExpectSink(1, 0.5f);
  Begin({{1, 2, 3, 5}, {1, 2, 3, 6}});
  EXPECT_FALSE(cache_.knows_all()) << "one sink is new";
  Begin({});
  EXPECT_FALSE(cache_.knows_all());
}

TEST_P(SinkCacheTest, AGroupThatDidNotEndIsForgotten) {
  Begin({{1, 2, 3, 4}});
  ASSERT_TRUE(cache_.Write(0, 0, Filled(1), kRow).ok());
  ASSERT_TRUE(backend_->stream->Synchronize().ok());
  Begin({{1, 2, 3, 4}});
  EXPECT_FALSE(cache_.knows_all());
}

TEST_P(SinkCacheTest, TheLeastRecentlyUsedSinkGoes) {
  for (int32_t first = 0; first < static_cast<int32_t>(SinkCache::kSinks); ++first) {
    Compute({{first, 0, 0, 0}}, static_cast<float>(first));
  }
  Begin({{0, 0, 0, 0}});  // used
  ASSERT_TRUE(cache_.knows_all());
  Compute({{100, 0, 0, 0}}, 50);
  Begin({{1, 0, 0, 0}});
  EXPECT_FALSE(cache_.knows_all());
  Begin({{0, 0, 0, 0}});
  ASSERT_TRUE(cache_.knows_all());
  ExpectSink(0, 0);
}

TEST_P(SinkCacheTest, AGroupOfMoreSinksKeepsTheFirstOnes) {
  std::vector<Prompt> prompts;
  for (int32_t i = 0; i < static_cast<int32_t>(SinkCache::kSinks) + 2; ++i) {
    prompts.push_back({i, 7, 7, 7});
  }
  Compute(prompts, 0);
  Begin(prompts);
  EXPECT_FALSE(cache_.knows_all());
  Begin({prompts.front()});
  ASSERT_TRUE(cache_.knows_all());
  ExpectSink(0, 0);
}

TEST_P(SinkCacheTest, NeedsWhatItAllocates) {
  const size_t before = backend_->device->allocated_bytes(MemoryPurpose::kActivations);
  const auto other = *SinkCache::Create({.device = backend_->device.get(),
                                         .ops = backend_->ops.get(),
                                         .stream = backend_->stream.get()},
                                        kGeometry);
  EXPECT_EQ(backend_->device->allocated_bytes(MemoryPurpose::kActivations) - before,
            SinkCache::MemoryOf(kGeometry).total());
}

INSTANTIATE_TEST_SUITE_P(Backends, SinkCacheTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
