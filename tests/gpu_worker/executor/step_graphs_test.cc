#include "gpu_worker/executor/step_graphs.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

#include "gpu_worker/device/staged_arrays.h"
#include "tests/support/backends.h"

namespace retroinfer {
namespace {

class StepGraphsTest : public testing::TestWithParam<test_support::BackendParam> {
 protected:
  // A step that carries `value` to the device and back.
  int32_t Run(StepGraphs& graphs, std::vector<uint64_t> shape, int32_t value) {
    in_.Host<int32_t>(0)[0] = value;
    const absl::Status status = graphs.Run(shape, [this]() -> absl::Status {
      ++num_enqueued_;
      EXPECT_TRUE(in_.Upload(*backend_->stream).ok());
      return in_.Download(*backend_->stream, 1);
    });
    EXPECT_TRUE(status.ok()) << status;
    EXPECT_TRUE(backend_->stream->Synchronize().ok());
    return in_.Host<int32_t>(0)[0];
  }

  std::unique_ptr<test_support::Backend> backend_ = GetParam().create();
  StagedArrays in_ =
      StagedArrays::Create(*backend_->device, std::array<size_t, 1>{4}, MemoryPurpose::kActivations)
          .value();
  int num_enqueued_ = 0;
};

TEST_P(StepGraphsTest, RecordsAShapeThatComesAgainAndReplaysIt) {
  StepGraphs graphs(*backend_->device, *backend_->stream, 4);
  for (int32_t i = 0; i < 10; ++i) EXPECT_EQ(Run(graphs, {1, 2}, i), i);
  EXPECT_EQ(Run(graphs, {1}, 77), 77);
  const bool records = backend_->device->can_capture();
  EXPECT_EQ(graphs.counters().recorded, records ? 1u : 0u);
  EXPECT_EQ(graphs.counters().launched, records ? 9u : 0u);
  EXPECT_EQ(num_enqueued_, records ? 3 : 11);
}

TEST_P(StepGraphsTest, ForgetsTheShapeThatWasUsedLongestAgo) {
  StepGraphs graphs(*backend_->device, *backend_->stream, 2);
  for (const uint64_t shape : {1u, 1u, 2u, 2u, 1u, 3u, 1u, 2u}) {
    EXPECT_EQ(Run(graphs, {shape}, static_cast<int32_t>(shape)), static_cast<int32_t>(shape));
  }
  // 3 took the place of 2, so that 2 came for the first time once more.
  EXPECT_EQ(graphs.counters().recorded, backend_->device->can_capture() ? 2u : 0u);
}

TEST_P(StepGraphsTest, PassesOnAFailureAndTriesAgain) {
  StepGraphs graphs(*backend_->device, *backend_->stream, 2);
  const std::vector<uint64_t> shape = {1};
  const auto fail = [] { return absl::InternalError("no"); };
  EXPECT_EQ(graphs.Run(shape, fail).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Run(graphs, {1}, 5), 5);
  EXPECT_EQ(graphs.Run(shape, fail).code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Run(graphs, {1}, 6), 6);
}

INSTANTIATE_TEST_SUITE_P(Backends, StepGraphsTest,
                         testing::ValuesIn(test_support::AvailableBackends()),
                         test_support::BackendName);

}  // namespace
}  // namespace retroinfer
