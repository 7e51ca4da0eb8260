#include "gpu_worker/executor/group_rows.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using test_support::Backend;
using test_support::DeviceData;

class GroupRowsTest : public testing::TestWithParam<test_support::BackendParam> {
 protected:
  std::vector<int32_t> Read(DeviceSpan<const int32_t> span) {
    return data_.Download<int32_t>(span);
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
};

TEST_P(GroupRowsTest, RowsAreThoseOfTheRunsPrompts) {
  auto rows = *GroupRows::Create(*backend_->device, *backend_->stream, 8, 2);
  const std::vector<int32_t> first = {10, 11, 12}, second = {20, 21, 22, 23, 24};
  const std::vector<std::span<const int32_t>> prompts = {first, second};
  std::vector<PrefillRun> runs(2);
  runs[0] = {.first_row = 0, .num_rows = 2, .first_position = 1, .members = {0}};
  runs[1] = {.first_row = 2, .num_rows = 3, .first_position = 2, .members = {1}};
  ASSERT_TRUE(rows.Upload(runs, prompts).ok());
  EXPECT_EQ(Read(rows.ids(0, 5)), (std::vector<int32_t>{11, 12, 22, 23, 24}));
  EXPECT_EQ(Read(rows.positions(1, 4)), (std::vector<int32_t>{2, 2, 3, 4}));
}

TEST_P(GroupRowsTest, RowsOfLastTokensAreThereBesideTheOthers) {
  auto rows = *GroupRows::Create(*backend_->device, *backend_->stream, 4, 3);
  const auto last = rows.UploadLast(std::vector<int32_t>{3, 1});
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_EQ(Read(*last), (std::vector<int32_t>{3, 1}));
}

TEST_P(GroupRowsTest, BytesAreWhatIsAllocated) {
  const size_t before = backend_->device->allocated_bytes(MemoryPurpose::kActivations);
  const auto rows = *GroupRows::Create(*backend_->device, *backend_->stream, 100, 7);
  EXPECT_EQ(backend_->device->allocated_bytes(MemoryPurpose::kActivations) - before,
            GroupRows::Bytes(100, 7));
}

INSTANTIATE_TEST_SUITE_P(Backends, GroupRowsTest,
                         testing::ValuesIn(test_support::AvailableBackends()),
                         test_support::BackendName);

}  // namespace
}  // namespace retroinfer
