#include "gpu_worker/measuring/synthetic/drifting_queries.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/gpu_worker/measuring/synthetic/fake_policy.h"
#include "tests/support/backends.h"

namespace retroinfer {
namespace {

constexpr int64_t kWidth = 2 * 64;

class DriftingQueriesTest : public ::testing::Test {
 protected:
  DriftingQueriesTest()
      : backend_(test_support::AvailableBackends().front().create()),
        context_(*SyntheticContext::Create(
            *backend_->device, *backend_->ops,
            {.geometry = {.num_layers = 2, .num_kv_heads = 1, .head_dim = 64},
             .num_query_heads = 2,
             .max_tokens = 20'000})),
        drifting_(*DriftingQueries::Create(*backend_->device, backend_->ops->model(),
                                           *backend_->stream, policy_, context_, 2, 3)) {}

  // The queries of one layer of a step for these sequences.
  std::vector<float> Step(std::vector<SequenceKv*> batch, uint32_t layer) {
    EXPECT_TRUE(drifting_->BeginStep(batch).ok());
    EXPECT_TRUE(drifting_->UploadStep().ok());
    return Layer(batch.size(), layer);
  }
  std::vector<float> Layer(size_t batch, uint32_t layer) {
    EXPECT_TRUE(drifting_->DecodeLayer(layer, {}, {}, {}, {}, {}).ok());
    EXPECT_EQ(policy_.queries.rows, static_cast<int64_t>(batch));
    EXPECT_EQ(policy_.queries.cols, kWidth);
    return Read(policy_.queries);
  }
  std::vector<float> Read(const MatrixView& view) {
    std::vector<float> values(static_cast<size_t>(view.rows * view.cols));
    const std::span<std::byte> host = std::as_writable_bytes(std::span(values));
    EXPECT_TRUE(
        backend_->device
            ->Download(*backend_->stream, DeviceSpan<std::byte>(view.data, host.size()), host)
            .ok());
    EXPECT_TRUE(backend_->stream->Synchronize().ok());
    return values;
  }

  std::unique_ptr<test_support::Backend> backend_;
  test_support::FakePolicy policy_;
  SyntheticContext context_;
  std::unique_ptr<DriftingQueries> drifting_;
  SequenceKv first_{.sequence_id = 1}, second_{.sequence_id = 2};
};

TEST_F(DriftingQueriesTest, EachSequenceAndLayerHasQueriesOfItsOwn) {
  const std::vector<float> zero = Step({&first_, &second_}, 0);
  const std::vector<float> one = Layer(2, 1);
  EXPECT_NE(zero, one);
  EXPECT_NE(std::vector<float>(zero.begin(), zero.begin() + kWidth),
            std::vector<float>(zero.begin() + kWidth, zero.end()));
}

TEST_F(DriftingQueriesTest, ASequencesQueriesDoNotDependOnItsPlaceInTheBatch) {
  const std::vector<float> both = Step({&first_, &second_}, 0);
  auto other = *DriftingQueries::Create(*backend_->device, backend_->ops->model(),
                                        *backend_->stream, policy_, context_, 2, 3);
  drifting_ = std::move(other);
  EXPECT_EQ(Step({&second_}, 0), std::vector<float>(both.begin() + kWidth, both.end()));
}

TEST_F(DriftingQueriesTest, ARowAsksWhatItsTokenWouldAskInAStepOfItsOwn) {
  first_.num_tokens = 20'000;
  const std::vector<float> together = Step({&first_, &first_}, 1);
  const std::vector<float> one = Step({&first_}, 1);
  first_.num_tokens = 20'001;
  const std::vector<float> next = Step({&first_}, 1);
  EXPECT_NE(one, next);
  EXPECT_EQ(one, std::vector<float>(together.begin(), together.begin() + kWidth));
  EXPECT_EQ(next, std::vector<float>(together.begin() + kWidth, together.end()));
}

TEST_F(DriftingQueriesTest, AGeneratedTokenHasTheKeyOfItsPosition) {
  ASSERT_EQ(context_.generated_keys().rows, static_cast<int64_t>(kGeneratedTokens));
  const auto key = [](const std::vector<float>& keys, size_t row) {
    return std::vector<float>(keys.begin() + static_cast<ptrdiff_t>(row * 64),
                              keys.begin() + static_cast<ptrdiff_t>((row + 1) * 64));
  };
  first_.num_tokens = 20'000;
  second_.num_tokens = 20'031;  // of another cluster
  Step({&first_, &first_, &second_}, 0);
  const std::vector<float> keys = Read(policy_.keys);
  EXPECT_NE(key(keys, 0), key(keys, 2));
  first_.num_tokens = 20'001;
  second_.num_tokens = 20'031 + static_cast<int64_t>(kGeneratedTokens);
  Step({&first_, &second_}, 1);
  const std::vector<float> later = Read(policy_.keys);
  EXPECT_EQ(key(later, 0), key(keys, 1)) << "a sequence's second row is its next token";
  EXPECT_EQ(key(later, 1), key(keys, 2)) << "keys come again";
}

TEST_F(DriftingQueriesTest, BytesAreWhatIsAllocated) {
  const SyntheticShape shape = {.geometry = {.num_layers = 2, .num_kv_heads = 1, .head_dim = 64},
                                .num_query_heads = 2,
                                .max_tokens = 20'000};
  const size_t before = backend_->device->allocated_bytes(MemoryPurpose::kActivations);
  auto other = *DriftingQueries::Create(*backend_->device, backend_->ops->model(),
                                        *backend_->stream, policy_, context_, 2, 3);
  EXPECT_EQ(backend_->device->allocated_bytes(MemoryPurpose::kActivations) - before,
            DriftingQueries::Bytes(shape, backend_->ops->model().activation_dtype(), 3));
}

TEST_F(DriftingQueriesTest, EverythingElseIsThePolicys) {
  EXPECT_EQ(drifting_->Need({}, 3, 5).dense_blocks, 3);
  EXPECT_EQ(drifting_->StepShape(), 17u);
  EXPECT_EQ(drifting_->LastStepBytes(1).read, 1);
  EXPECT_TRUE(drifting_->DownloadStep().ok());
  EXPECT_TRUE(drifting_->EndStep().ok());
  EXPECT_TRUE(*drifting_->LayerTaken(first_, 0));
  EXPECT_TRUE(*drifting_->Release(first_));
}

}  // namespace
}  // namespace retroinfer
