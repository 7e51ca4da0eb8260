#include "gpu_worker/model/workspace.h"

#include <gtest/gtest.h>

#include <functional>
#include <utility>
#include <vector>

#include "tests/support/backends.h"

namespace retroinfer {
namespace {

ModelConfig Config(int64_t intermediate) {
  ModelConfig config;
  config.hidden_size = 24;
  config.intermediate_size = intermediate;
  config.num_query_heads = 3;
  config.num_kv_heads = 1;
  config.head_dim = 64;
  return config;
}

using Range = std::pair<const void*, const void*>;

Range Of(const MatrixView& matrix) {
  EXPECT_EQ(matrix.row_stride, matrix.cols);
  return {matrix.data, matrix.data + matrix.rows * matrix.cols * DTypeBytes(matrix.dtype)};
}
Range Of(DeviceSpan<float> span) { return {span.device_data(), span.device_data() + span.size()}; }
bool Disjoint(const Range& a, const Range& b) {
  const std::less_equal<const void*> at_most;
  return at_most(a.second, b.first) || at_most(b.second, a.first);
}

class WorkspaceTest : public ::testing::TestWithParam<std::pair<int64_t, DType>> {
 protected:
  std::unique_ptr<test_support::Backend> backend_ =
      test_support::AvailableBackends().front().create();
};

TEST_P(WorkspaceTest, PartsHaveTheirShapesAndDoNotOverlap) {
  const auto [intermediate, dtype] = GetParam();
  const ModelConfig config = Config(intermediate);
  const auto workspace = Workspace::Create(*backend_->device, config, dtype, 33);
  ASSERT_TRUE(workspace.ok()) << workspace.status();
  EXPECT_EQ(workspace->max_rows(), 33);
  EXPECT_EQ(backend_->device->allocated_bytes(MemoryPurpose::kActivations),
            Workspace::Bytes(config, dtype, 33));
  for (const int64_t rows : {1, 32, 33}) {
    const Workspace::Views views = workspace->Rows(rows);
    EXPECT_EQ(views.hidden.cols, 24);
    EXPECT_EQ(views.normed.cols, 24);
    EXPECT_EQ(views.queries.cols, 192);
    EXPECT_EQ(views.keys.cols, 64);
    EXPECT_EQ(views.values.cols, 64);
    EXPECT_EQ(views.attention.cols, 192);
    EXPECT_EQ(views.gate_up.cols, 2 * intermediate);
    EXPECT_EQ(views.cos.size(), static_cast<size_t>(rows * 32));
    EXPECT_EQ(views.sin.size(), static_cast<size_t>(rows * 32));
    // Queries, keys and values stand beside each other in every row.
    EXPECT_EQ(views.qkv.cols, 192 + 2 * 64);
    EXPECT_EQ(views.queries.data, views.qkv.data);
    EXPECT_EQ(views.keys.data, views.qkv.Columns(192, 64).data);
    EXPECT_EQ(views.values.data, views.qkv.Columns(256, 64).data);
    for (const MatrixView& part : {views.queries, views.keys, views.values}) {
      EXPECT_EQ(part.row_stride, 320);
      EXPECT_EQ(part.rows, rows);
    }
    const std::vector<Range> attention = {Of(views.hidden), Of(views.normed), Of(views.cos),
                                          Of(views.sin),    Of(views.qkv),    Of(views.attention)};
    const std::vector<Range> feed_forward = {Of(views.hidden), Of(views.normed), Of(views.cos),
                                             Of(views.sin), Of(views.gate_up)};
    for (const auto& ranges : {attention, feed_forward}) {
      for (size_t i = 0; i < ranges.size(); ++i) {
        for (size_t j = 0; j < i; ++j) EXPECT_TRUE(Disjoint(ranges[i], ranges[j])) << i << j;
      }
    }
    for (const MatrixView& matrix : {views.hidden, views.gate_up, views.attention}) {
      EXPECT_EQ(matrix.rows, rows);
      EXPECT_EQ(matrix.dtype, dtype);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(matrix.data) % 64, 0u);
    }
  }
}

TEST(WorkspaceRopeTest, WindowLayersWithAnotherRopeHaveATableOfTheirOwn) {
  const auto backend = test_support::AvailableBackends().front().create();
  ModelConfig config = Config(16);
  config.window_rope = RopeConfig{};
  const auto workspace = Workspace::Create(*backend->device, config, DType::kF32, 3);
  ASSERT_TRUE(workspace.ok());
  const Workspace::Views views = workspace->Rows(2);
  EXPECT_EQ(views.window_cos.size(), 2u * 32);
  const std::vector<Range> ranges = {Of(views.cos), Of(views.sin), Of(views.window_cos),
                                     Of(views.window_sin), Of(views.qkv)};
  for (size_t i = 0; i < ranges.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_TRUE(Disjoint(ranges[i], ranges[j])) << i << j;
  }
  config.window_rope.reset();
  const auto plain = Workspace::Create(*backend->device, config, DType::kF32, 3);
  ASSERT_TRUE(plain.ok());
  EXPECT_TRUE(plain->Rows(2).window_cos.empty());
}

TEST(WorkspaceRopeTest, TablesHaveTheRotatedPairsAndQueriesThatGrowTheirOwn) {
  const auto backend = test_support::AvailableBackends().front().create();
  ModelConfig config = Config(16);
  config.rope.rotated_part = 0.75;
  const auto plain = Workspace::Create(*backend->device, config, DType::kF32, 3);
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->Rows(2).cos.size(), 2u * 24);
  EXPECT_TRUE(plain->Rows(2).query_cos.empty());
  config.rope.query_growth = 0.1;
  const auto growing = Workspace::Create(*backend->device, config, DType::kF32, 3);
  ASSERT_TRUE(growing.ok());
  const Workspace::Views views = growing->Rows(2);
  EXPECT_EQ(views.query_cos.size(), 2u * 24);
  const std::vector<Range> ranges = {Of(views.cos), Of(views.sin), Of(views.query_cos),
                                     Of(views.query_sin), Of(views.qkv)};
  for (size_t i = 0; i < ranges.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_TRUE(Disjoint(ranges[i], ranges[j])) << i << j;
  }
}

TEST_P(WorkspaceTest, RowsOfExpertsHaveTheirShapesAndDoNotOverlap) {
  const auto [intermediate, dtype] = GetParam();
  ModelConfig config = Config(intermediate);
  config.experts = {.count = 12, .per_token = 3, .weights_sum_to_one = true};
  const auto workspace = Workspace::Create(*backend_->device, config, dtype, 70);
  ASSERT_TRUE(workspace.ok()) << workspace.status();
  EXPECT_EQ(backend_->device->allocated_bytes(MemoryPurpose::kActivations),
            Workspace::Bytes(config, dtype, 70));
  for (const int64_t rows : {1, 64, 70}) {
    const Workspace::Views views = workspace->Rows(rows);
    const Workspace::ExpertRows& experts = views.experts;
    EXPECT_EQ(views.gate_up.rows, 0);
    EXPECT_EQ(experts.scores.rows, rows);
    EXPECT_EQ(experts.scores.cols, 12);
    EXPECT_EQ(experts.scores.dtype, DType::kF32);
    EXPECT_EQ(experts.gated.rows, 3 * rows);
    EXPECT_EQ(experts.gated.cols, intermediate);
    EXPECT_EQ(experts.products.rows, 3 * rows);
    EXPECT_EQ(experts.products.cols, 24);
    EXPECT_EQ(experts.routes.num_experts, 12);
    EXPECT_EQ(experts.routes.per_row, 3);
    EXPECT_EQ(experts.routes.experts.size(), static_cast<size_t>(3 * rows));
    EXPECT_EQ(experts.routes.weights.size(), static_cast<size_t>(3 * rows));
    const auto of = [](DeviceSpan<int32_t> span) {
      return Range{span.device_data(), span.device_data() + span.size()};
    };
    const std::vector<Range> ranges = {Of(views.hidden),           Of(views.normed),
                                       Of(experts.scores),         of(experts.routes.experts),
                                       Of(experts.routes.weights), of(experts.routes.plan),
                                       Of(experts.gated),          Of(experts.products)};
    for (size_t i = 0; i < ranges.size(); ++i) {
      for (size_t j = 0; j < i; ++j) EXPECT_TRUE(Disjoint(ranges[i], ranges[j])) << i << j;
    }
  }
}

// Whichever half of a layer is larger.
INSTANTIATE_TEST_SUITE_P(Sizes, WorkspaceTest,
                         ::testing::Values(std::pair(int64_t{16}, DType::kF32),
                                           std::pair(int64_t{1000}, DType::kF32),
                                           std::pair(int64_t{1000}, DType::kBf16)));

}  // namespace
}  // namespace retroinfer
