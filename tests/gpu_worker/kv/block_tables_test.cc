#include "gpu_worker/kv/block_tables.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

class BlockTablesTest : public testing::TestWithParam<test_support::BackendParam> {};

TEST_P(BlockTablesTest, RowsAreApartAndRefuseTooManyBlocks) {
  const auto backend = GetParam().create();
  auto tables = BlockTables::Create(*backend->device, 2, 4, 3);
  ASSERT_TRUE(tables.ok());
  Stream& stream = *backend->stream;
  const std::vector<int32_t> first = {1, 2, 3, 4}, second = {5, 6};
  ASSERT_TRUE((*tables)->WriteDense(stream, 0, first).ok());
  ASSERT_TRUE((*tables)->WriteDense(stream, 1, second).ok());
  ASSERT_TRUE((*tables)->WriteMeta(stream, 1, std::vector<int32_t>{7, 8, 9}).ok());
  const auto read = [&](DeviceSpan<const int32_t> row) {
    std::vector<int32_t> host(row.size());
    EXPECT_TRUE(
        backend->device
            ->Download(stream,
                       {reinterpret_cast<const std::byte*>(row.device_data()), row.size_bytes()},
                       std::as_writable_bytes(std::span(host)))
            .ok());
    EXPECT_TRUE(stream.Synchronize().ok());
    return host;
  };
  EXPECT_EQ(read((*tables)->Dense(0)), first);
  EXPECT_EQ(read((*tables)->Dense(1).first(2)), second);
  EXPECT_EQ(read((*tables)->Meta(1)), (std::vector<int32_t>{7, 8, 9}));
  EXPECT_EQ((*tables)->WriteMeta(stream, 0, first).code(), absl::StatusCode::kInternal);
  // What follows does not touch what is there.
  ASSERT_TRUE((*tables)->WriteMeta(stream, 1, std::vector<int32_t>{11}, 2).ok());
  EXPECT_EQ(read((*tables)->Meta(1)), (std::vector<int32_t>{7, 8, 11}));
  EXPECT_FALSE((*tables)->WriteMeta(stream, 1, second, 2).ok());
  EXPECT_FALSE((*tables)->WriteMeta(stream, 1, {}, 4).ok());
}

INSTANTIATE_TEST_SUITE_P(Backends, BlockTablesTest,
                         testing::ValuesIn(test_support::AvailableBackends()),
                         test_support::BackendName);

}  // namespace
}  // namespace retroinfer
