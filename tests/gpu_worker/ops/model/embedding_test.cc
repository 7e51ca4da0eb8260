#include "gpu_worker/ops/model/embedding.h"

#include <gtest/gtest.h>

#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using namespace test_support;

class EmbeddingTest : public testing::TestWithParam<BackendParam> {
 protected:
  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(EmbeddingTest, CopiesRowsOfAnyTypeInAnyOrder) {
  constexpr int64_t kVocab = 50;
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const int64_t hidden : {1, 31, 32, 33, 200}) {
      const auto table = data_.UploadMatrix(RandomNormal(static_cast<size_t>(kVocab * hidden), 1),
                                            kVocab, hidden, dtype);
      const std::vector<float> rows = data_.Rounded(data_.Values(table));
      for (const size_t count : {0, 1, 33, 700}) {
        std::vector<int32_t> ids(count);
        for (size_t i = 0; i < count; ++i) ids[i] = static_cast<int32_t>(i * 17 % kVocab);
        const DeviceBuffer id_buffer = data_.Upload(ids);
        const auto out = data_.Poisoned(static_cast<int64_t>(count), hidden);
        ASSERT_TRUE(backend_->ops->model()
                        .Embedding(*backend_->stream, {.token_ids = id_buffer.as<const int32_t>(),
                                                       .table = table.view,
                                                       .out = out.view})
                        .ok());
        const std::vector<float> got = data_.Values(out);
        for (size_t i = 0; i < got.size(); ++i) {
          const auto width = static_cast<size_t>(hidden);
          ASSERT_EQ(got[i], rows[static_cast<size_t>(ids[i / width]) * width + i % width]);
        }
      }
    }
  }
}

TEST_P(EmbeddingTest, ReadsHalfPrecision) {
  const DeviceBuffer table = data_.Upload(std::vector<uint16_t>{0x3c00, 0xc000, 0x0001, 0x7bff});
  const DeviceBuffer ids = data_.Upload(std::vector<int32_t>{1, 0});
  const auto out = data_.Poisoned(2, 2);
  ASSERT_TRUE(backend_->ops->model()
                  .Embedding(*backend_->stream,
                             {.token_ids = ids.as<const int32_t>(),
                              .table = MatrixView::Dense(table.bytes(), DType::kF16, 2, 2),
                              .out = out.view})
                  .ok());
  EXPECT_EQ(data_.Values(out), data_.Rounded(std::vector<float>{0x1p-24f, 65504.0f, 1.0f, -2.0f}));
}

TEST_P(EmbeddingTest, ScalesBeforeRounding) {
  const auto table = data_.UploadMatrix(std::vector<float>{1, -3, 1000, 0.5f}, 2, 2, DType::kF32);
  const DeviceBuffer ids = data_.Upload(std::vector<int32_t>{1, 0});
  const auto out = data_.Poisoned(2, 2);
  ASSERT_TRUE(backend_->ops->model()
                  .Embedding(*backend_->stream, {.token_ids = ids.as<const int32_t>(),
                                                 .table = table.view,
                                                 .scale = 54.6f,
                                                 .out = out.view})
                  .ok());
  EXPECT_EQ(data_.Values(out),
            data_.Rounded(std::vector<float>{54.6f * 1000, 54.6f * 0.5f, 54.6f, 54.6f * -3}));
}

TEST_P(EmbeddingTest, RefusesAnOutputOfAnotherShape) {
  const auto table = data_.UploadMatrix(RandomNormal(8, 1), 2, 4, DType::kF32);
  const DeviceBuffer ids = data_.Upload(std::vector<int32_t>{1});
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 3}, {2, 4}}) {
    const auto out = data_.Poisoned(rows, cols);
    EXPECT_EQ(
        backend_->ops->model()
            .Embedding(*backend_->stream,
                       {.token_ids = ids.as<const int32_t>(), .table = table.view, .out = out.view})
            .code(),
        absl::StatusCode::kInvalidArgument);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, EmbeddingTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
