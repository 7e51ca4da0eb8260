#include "kv_store_service/persistence/segment_catalog.h"

#include <gtest/gtest.h>

#include "tests/kv_store_service/persistence/sample_segments.h"

namespace retroinfer::kvstore {
namespace {

using testing::At;
using testing::MakeSample;

ManifestRow Row(uint64_t seed, uint64_t payload_id) {
  ManifestRow row;
  row.record = MakeSample(seed, 100).record;
  row.payload_id = payload_id;
  row.chunk_bytes = 4096;
  return row;
}

TEST(SegmentCatalogTest, InsertsOnceAndCounts) {
  SegmentCatalog catalog;
  EXPECT_TRUE(catalog.Insert(Row(1, 1)));
  EXPECT_FALSE(catalog.Insert(Row(1, 2)));
  EXPECT_EQ(catalog.Find(Row(1, 1).record.name)->payload_id, 1u);
  EXPECT_EQ(catalog.totals().segments, 1u);
  EXPECT_EQ(catalog.totals().image_bytes, 100u);
}

TEST(SegmentCatalogTest, ErasesOnlyThePayloadThatIsMeant) {
  SegmentCatalog catalog;
  catalog.Insert(Row(1, 7));
  const SegmentName name = Row(1, 7).record.name;
  EXPECT_FALSE(catalog.Erase(name, 6));
  EXPECT_TRUE(catalog.Erase(name, 7));
  EXPECT_FALSE(catalog.Erase(name));
  EXPECT_EQ(catalog.totals().image_bytes, 0u);
}

TEST(SegmentCatalogTest, TouchedSegmentsAreReportedOnce) {
  SegmentCatalog catalog;
  catalog.Insert(Row(1, 1));
  catalog.Insert(Row(2, 2));
  const std::vector<SegmentName> names = {Row(1, 1).record.name, Row(3, 3).record.name};
  catalog.Touch(names, At(10));
  EXPECT_EQ(catalog.num_touched(), 1u);
  const auto uses = catalog.TakeTouched();
  ASSERT_EQ(uses.size(), 1u);
  EXPECT_EQ(uses[0].last_use, At(10));
  EXPECT_TRUE(catalog.TakeTouched().empty());
  catalog.Touch(names, At(20));
  catalog.Erase(names[0]);
  EXPECT_EQ(catalog.num_touched(), 0u);
}

TEST(SegmentCatalogTest, ContextsOfDifferentTenantsDoNotMeet) {
  SegmentCatalog catalog;
  ContextRecord context;
  context.context_name = "x";
  context.salt_hash = common::SaltHash("a");
  catalog.PutContext(context);
  EXPECT_FALSE(catalog.FindContext(common::SaltHash("b"), "x").has_value());
  EXPECT_FALSE(catalog.EraseContext(common::SaltHash("b"), "x"));
  EXPECT_TRUE(catalog.EraseContext(common::SaltHash("a"), "x"));
}

}  // namespace
}  // namespace retroinfer::kvstore
