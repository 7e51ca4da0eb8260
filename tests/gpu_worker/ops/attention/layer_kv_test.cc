#include "gpu_worker/ops/attention/layer_kv.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/backends.h"
#include "tests/support/device_data.h"
#include "tests/support/layer_kv_image.h"

namespace retroinfer {
namespace {

using namespace test_support;

class LayerKvTest : public testing::TestWithParam<BackendParam> {
 protected:
  LayerKvImage Random(const KvGeometry& g, int64_t capacity, uint64_t seed) {
    const size_t size = static_cast<size_t>(capacity) * g.num_kv_heads * g.head_dim;
    return LayerKvImage(data_, RandomNormal(size, seed), RandomNormal(size, seed + 1),
                        g.num_kv_heads, g.head_dim, g.format);
  }
  std::vector<float> Read(const LayerKv& kv, bool values) {
    const size_t bytes =
        static_cast<size_t>(kv.num_kv_heads * kv.capacity) * kv.head_dim * DTypeBytes(kv.dtype);
    const std::byte* from = values ? kv.values : kv.keys;
    return FromBytes(data_.Download(DeviceSpan<const std::byte>(from, bytes)), kv.dtype);
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(LayerKvTest, StoresAChunkRoundedAndLeavesTheRest) {
  for (const KvFormat& format : KvFormatsOf(*backend_)) {
    const KvGeometry g = {1, 2, 64, format};
    for (const int64_t rows : {0, 1, 33, 200}) {
      const int64_t capacity = rows + 9, first = 5;
      const auto kv = Random(g, capacity, 1);
      const std::vector<float> before = Read(kv.view(), false);
      const auto k = data_.Rounded(RandomNormal(static_cast<size_t>(rows) * 128, 3));
      const auto v = data_.Rounded(RandomNormal(static_cast<size_t>(rows) * 128, 4));
      const auto keys = data_.Activations(k, rows, 128), values = data_.Activations(v, rows, 128);
      ASSERT_TRUE(backend_->ops->attention()
                      .StoreLayerKv(*backend_->stream, {.keys = keys.view,
                                                        .values = values.view,
                                                        .first_token = first,
                                                        .out = kv.view()})
                      .ok());
      const auto got_keys = Read(kv.view(), false), got_values = Read(kv.view(), true);
      const auto k_rounded = RoundedTokens(k, format.token, 64);
      const auto v_rounded = RoundedTokens(v, format.token, 64);
      for (size_t i = 0; i < got_keys.size(); ++i) {
        const auto token = static_cast<int64_t>(i / 64) % capacity;
        const size_t head = i / 64 / static_cast<size_t>(capacity);
        if (token < first || token >= first + rows) {
          ASSERT_EQ(got_keys[i], before[i]);
          continue;
        }
        const size_t from = static_cast<size_t>(token - first) * 128 + head * 64 + i % 64;
        ASSERT_EQ(got_keys[i], k_rounded[from]);
        ASSERT_EQ(got_values[i], v_rounded[from]);
      }
    }
  }
}

TEST_P(LayerKvTest, FillsPagesAsTheLayoutSays) {
  const KvGeometry g = {2, 1, 128, kBf16Kv};  // 4 tokens a page
  const auto kv = Random(g, 70, 1);
  const DeviceBuffer pool = data_.Upload(std::vector<std::byte>(3 * DensePoolView::BlockBytes(g)));
  const DeviceBuffer blocks = data_.Upload(std::vector<DenseBlockId>{2, 0});
  const DensePoolView view = {pool.bytes(), g};
  ASSERT_TRUE(backend_->ops->attention()
                  .FillDense(*backend_->stream, {.in = kv.view(),
                                                 .first_token = 1,
                                                 .num_tokens = 66,
                                                 .pool = view,
                                                 .layer = 1,
                                                 .block_ids = blocks.as<const DenseBlockId>()})
                  .ok());
  // Token 1 + 6: place 6 of block 2, page 1, slot 2.
  const std::byte* page = view.Run(2, 1, 0) + kPageBytes;
  const auto page_elements =
      FromBytes(data_.Download(DeviceSpan<const std::byte>(page, kPageBytes)), DType::kBf16);
  EXPECT_EQ(page_elements[2 * 128 + 5], kv.Key(0, 7)[5]);
  EXPECT_EQ(page_elements[4 * 128 + 2 * 128 + 5], kv.Value(0, 7)[5]);
  // Token 1 + 65: place 1 of block 0.
  const auto second = FromBytes(
      data_.Download(DeviceSpan<const std::byte>(view.Run(0, 1, 0), kPageBytes)), DType::kBf16);
  EXPECT_EQ(second[128], kv.Key(0, 66)[0]);
  EXPECT_EQ(second[4 * 128 + 2 * 128], 0) << "written beyond the last token";
}

TEST_P(LayerKvTest, ReadsBackWhatWasFilledAndAppended) {
  for (const KvFormat& format : KvFormatsOf(*backend_)) {
    for (const uint32_t head_dim : kHeadDims) {
      const KvGeometry g = {2, 3, head_dim, format};
      for (const int64_t tokens : {0, 1, 31, 63, 64, 65, 150}) {
        const auto kv = Random(g, tokens + 10, 5);
        const DeviceBuffer pool = data_.Allocate(4 * DensePoolView::BlockBytes(g));
        const DensePoolView view = {pool.bytes(), g};
        const std::vector<DenseBlockId> ids = {3, 1, 2};
        const DeviceBuffer blocks = data_.Upload(ids);
        ASSERT_TRUE(
            backend_->ops->attention()
                .FillDense(*backend_->stream, {.in = kv.view(),
                                               .first_token = 10,
                                               .num_tokens = tokens,
                                               .pool = view,
                                               .layer = 1,
                                               .block_ids = blocks.as<const DenseBlockId>()})
                .ok());
        // One more token behind them.
        const int64_t cols = 3 * int64_t{head_dim};
        const auto key = data_.Activations(RandomNormal(static_cast<size_t>(cols), 6), 1, cols);
        const auto value = data_.Activations(RandomNormal(static_cast<size_t>(cols), 7), 1, cols);
        const DeviceBuffer block = data_.Upload(std::vector<DenseBlockId>{ids[tokens / 64]});
        const DeviceBuffer place =
            data_.Upload(std::vector<int32_t>{static_cast<int32_t>(tokens % 64)});
        ASSERT_TRUE(
            backend_->ops->attention()
                .AppendDense(*backend_->stream, {.keys = key.view,
                                                 .values = value.view,
                                                 .pool = view,
                                                 .layer = 1,
                                                 .block_ids = block.as<const DenseBlockId>(),
                                                 .place_in_block = place.as<const int32_t>()})
                .ok());
        const auto out = Random(g, tokens + 1, 8);
        ASSERT_TRUE(backend_->ops->attention()
                        .ReadDense(*backend_->stream, {.pool = view,
                                                       .layer = 1,
                                                       .block_ids = blocks.as<const DenseBlockId>(),
                                                       .num_tokens = tokens + 1,
                                                       .out = out.view()})
                        .ok());
        const auto got_keys = Read(out.view(), false), got_values = Read(out.view(), true);
        const auto new_key = RoundedTokens(data_.Values(key), format.token, head_dim);
        for (uint32_t head = 0; head < 3; ++head) {
          for (int64_t t = 0; t < tokens; ++t) {
            const size_t at = static_cast<size_t>(head * (tokens + 1) + t) * head_dim;
            ASSERT_TRUE(std::equal(kv.Key(head, t + 10), kv.Key(head, t + 10) + head_dim,
                                   got_keys.begin() + static_cast<int64_t>(at)));
            ASSERT_TRUE(std::equal(kv.Value(head, t + 10), kv.Value(head, t + 10) + head_dim,
                                   got_values.begin() + static_cast<int64_t>(at)));
          }
          EXPECT_EQ(got_keys[static_cast<size_t>(head * (tokens + 1) + tokens) * head_dim + 3],
                    new_key[head * head_dim + 3]);
        }
      }
    }
  }
}

TEST_P(LayerKvTest, RefusesWhatDoesNotFit) {
  const KvGeometry g = {2, 1, 64, kBf16Kv};
  const auto kv = Random(g, 100, 1);
  const DeviceBuffer pool = data_.Allocate(DensePoolView::BlockBytes(g));
  const DeviceBuffer blocks = data_.Upload(std::vector<DenseBlockId>{0});
  FillDenseArgs args = {.in = kv.view(),
                        .first_token = 0,
                        .num_tokens = 65,
                        .pool = {pool.bytes(), g},
                        .layer = 1,
                        .block_ids = blocks.as<const DenseBlockId>()};
  EXPECT_EQ(backend_->ops->attention().FillDense(*backend_->stream, args).code(),
            absl::StatusCode::kInvalidArgument);
  args.num_tokens = 10;
  args.first_token = 95;
  EXPECT_EQ(backend_->ops->attention().FillDense(*backend_->stream, args).code(),
            absl::StatusCode::kInvalidArgument);
  args.first_token = 0;
  args.layer = 2;
  EXPECT_EQ(backend_->ops->attention().FillDense(*backend_->stream, args).code(),
            absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Backends, LayerKvTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
