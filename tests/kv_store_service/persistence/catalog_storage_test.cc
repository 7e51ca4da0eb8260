// Beyond the contract suite of segment_storage_test.cc.
#include "kv_store_service/persistence/catalog_storage.h"

#include <gtest/gtest.h>

#include "tests/kv_store_service/persistence/sample_segments.h"
#include "tests/support/storage/in_memory_segment_storage.h"

namespace retroinfer::kvstore {
namespace {

TEST(CatalogStorageTest, ListsContextsByTenantAndName) {
  const auto storage = MakeInMemorySegmentStorage();
  ContextRecord context;
  for (const char* name : {"b", "a"}) {
    context.context_name = name;
    ASSERT_TRUE(storage->PutContext(context).ok());
  }
  ASSERT_EQ(storage->ListContexts().size(), 2u);
  EXPECT_EQ(storage->ListContexts()[0].context_name, "a");
  EXPECT_TRUE(storage->FindContext(context.salt_hash, "b").ok());
  EXPECT_FALSE(storage->Peek(testing::MakeSample(1).name()).has_value());
  EXPECT_TRUE(storage->List().empty());
}

}  // namespace
}  // namespace retroinfer::kvstore
