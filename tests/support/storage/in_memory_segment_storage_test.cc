// Beyond the contract suite of segment_storage_test.cc.
#include "tests/support/storage/in_memory_segment_storage.h"

#include <gtest/gtest.h>

#include "tests/kv_store_service/persistence/sample_segments.h"

namespace retroinfer::kvstore {
namespace {

TEST(InMemorySegmentStorageTest, ItsPhysicalBytesAreItsImages) {
  const auto storage = MakeInMemorySegmentStorage();
  ASSERT_TRUE(PutSample(*storage, testing::MakeSample(1, 1000)).ok());
  ASSERT_TRUE(PutSample(*storage, testing::MakeSample(2, 500)).ok());
  EXPECT_EQ(storage->Stats().physical_bytes, 1500u);
  const SegmentName name = testing::MakeSample(1, 1000).name();
  ASSERT_TRUE(storage->Delete({&name, 1}).ok());
  EXPECT_EQ(storage->Stats().physical_bytes, 500u);
}

}  // namespace
}  // namespace retroinfer::kvstore
