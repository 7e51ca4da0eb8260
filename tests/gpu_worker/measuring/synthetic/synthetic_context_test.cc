#include "gpu_worker/measuring/synthetic/synthetic_context.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "gpu_worker/measuring/synthetic/cell_tables.h"
#include "tests/support/backends.h"

namespace retroinfer {
namespace {

float FromBf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

double Cosine(const float* a, const float* b, size_t dim) {
  double dot = 0, aa = 0, bb = 0;
  for (size_t i = 0; i < dim; ++i) {
    dot += double{a[i]} * b[i];
    aa += double{a[i]} * a[i];
    bb += double{b[i]} * b[i];
  }
  return dot / std::sqrt(aa * bb);
}

constexpr size_t kDim = 64, kKvHeads = 2, kQueryHeads = 4, kTokens = 5000;

class SyntheticContextTest : public ::testing::TestWithParam<test_support::BackendParam> {
 protected:
  SyntheticContext Create(double overlap) {
    shape_.overlap = overlap;
    auto context = SyntheticContext::Create(*backend_->device, *backend_->ops, shape_);
    EXPECT_TRUE(context.ok()) << context.status();
    return *std::move(context);
  }
  std::vector<float> Read(const std::byte* data, size_t count) {
    std::vector<uint16_t> bits(count);
    EXPECT_TRUE(backend_->device
                    ->Download(*backend_->stream,
                               DeviceSpan<const std::byte>(data, count * sizeof(uint16_t)),
                               std::as_writable_bytes(std::span(bits)))
                    .ok());
    EXPECT_TRUE(backend_->stream->Synchronize().ok());
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = FromBf16(bits[i]);
    return values;
  }

  std::unique_ptr<test_support::Backend> backend_ = GetParam().create();
  SyntheticShape shape_ = {
      .geometry = {.num_layers = 2, .num_kv_heads = kKvHeads, .head_dim = kDim},
      .num_query_heads = kQueryHeads,
      .max_tokens = kTokens};
};

TEST_P(SyntheticContextTest, NeighboursOftenShareATopicAndStrangersDoNot) {
  SyntheticContext context = Create(0.99);
  const auto kv = context.MakeLayer(*backend_->stream, 1, kTokens);
  ASSERT_TRUE(kv.ok()) << kv.status();
  const std::vector<float> keys = Read(kv->keys, kTokens * kDim);  // of the first head
  int alike = 0;
  double far = 0;
  for (size_t i = 0; i + 1 < kTokens; ++i) {
    alike += Cosine(&keys[i * kDim], &keys[(i + 1) * kDim], kDim) > 0.5;
    far += std::abs(Cosine(&keys[i * kDim], &keys[(i * 7919 + 13) % kTokens * kDim], kDim));
  }
  EXPECT_GT(alike, 0.85 * kTokens);  // a topic lasts a dozen tokens
  EXPECT_LT(alike, 0.99 * kTokens);
  EXPECT_LT(far / kTokens, 0.4);
}

TEST_P(SyntheticContextTest, QueriesOfTwoStepsAreAsAlikeAsAsked) {
  for (const double overlap : {0.99, 0.5}) {
    const SyntheticContext context = Create(overlap);
    const MatrixView& queries = context.queries();
    const size_t width = kQueryHeads * kDim;
    ASSERT_EQ(queries.cols, static_cast<int64_t>(width));
    const auto rows = static_cast<size_t>(queries.rows);
    const std::vector<float> values = Read(queries.data, rows * width);
    double sum = 0;
    for (size_t row = 0; row + 1 < rows; ++row) {
      sum += Cosine(&values[row * width], &values[(row + 1) * width], kDim);
    }
    // Each query has some noise of its own, and what is new in one may be an old topic.
    EXPECT_NEAR(sum / static_cast<double>(rows - 1), overlap, overlap > 0.9 ? 0.05 : 0.15);
  }
}

// Cells are read as they were planned: each cluster of 16 tokens has a direction of its own.
TEST_P(SyntheticContextTest, WithoutAnOverlapKeysLieInCellsAndLayersHaveQueriesOfTheirOwn) {
  shape_.overlap.reset();
  const size_t before = backend_->device->allocated_bytes(MemoryPurpose::kActivations);
  auto context = SyntheticContext::Create(*backend_->device, *backend_->ops, shape_);
  ASSERT_TRUE(context.ok()) << context.status();
  EXPECT_EQ(backend_->device->allocated_bytes(MemoryPurpose::kActivations) - before,
            SyntheticContext::Bytes(shape_, backend_->ops->model().activation_dtype()));
  EXPECT_EQ(context->generated_keys().rows, static_cast<int64_t>(kGeneratedTokens));
  EXPECT_EQ(context->generated_keys().cols, static_cast<int64_t>(kKvHeads * kDim));
  const auto kv = context->MakeLayer(*backend_->stream, 1, kTokens);
  ASSERT_TRUE(kv.ok()) << kv.status();
  const std::vector<float> keys = Read(kv->keys, kTokens * kDim);
  const CellPlan plan = PlanCells(shape_);
  const auto first_key = [&](size_t cluster) {
    return &keys[(kSinkTokens + cluster * kTokensPerCluster) * kDim];
  };
  for (size_t cluster = 0; cluster + 1 < plan.num_clusters; ++cluster) {
    const bool same_cell = cluster / plan.clusters_of_cell == (cluster + 1) / plan.clusters_of_cell;
    const double cosine = Cosine(first_key(cluster), first_key(cluster + 1), kDim);
    EXPECT_EQ(cosine > 0.8, same_cell) << cluster << ": " << cosine;
    EXPECT_LT(cosine, 0.99);
  }
  EXPECT_EQ(context->queries().rows, static_cast<int64_t>(2 * kQueriesOfSet));
  EXPECT_EQ(context->QueryRow(0, 0, 5), 5);
  EXPECT_EQ(context->QueryRow(0, 0, kQueriesOfSet + 5), 5);
  EXPECT_EQ(context->QueryRow(1, 1, 0), static_cast<int32_t>(kQueriesOfSet + 37 + 101));
}

TEST_P(SyntheticContextTest, ASequenceMayBeShorterAndTheMemoryIsWhatItSays) {
  const size_t before = backend_->device->allocated_bytes(MemoryPurpose::kActivations);
  SyntheticContext context = Create(0.99);
  EXPECT_EQ(backend_->device->allocated_bytes(MemoryPurpose::kActivations) - before,
            SyntheticContext::Bytes(shape_, backend_->ops->model().activation_dtype()));
  const auto all = context.MakeLayer(*backend_->stream, 0, kTokens);
  ASSERT_TRUE(all.ok());
  const std::vector<float> keys = Read(all->keys, kTokens * kDim);
  ASSERT_TRUE(context.ReadBy(*backend_->background).ok());
  const auto part = context.MakeLayer(*backend_->stream, 0, 100);
  ASSERT_TRUE(part.ok());
  EXPECT_EQ(part->capacity, static_cast<int64_t>(kTokens));
  EXPECT_EQ(Read(part->keys, 100 * kDim),
            std::vector<float>(keys.begin(), keys.begin() + 100 * kDim));
}

INSTANTIATE_TEST_SUITE_P(Backends, SyntheticContextTest,
                         ::testing::ValuesIn(test_support::AvailableBackends()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace retroinfer
