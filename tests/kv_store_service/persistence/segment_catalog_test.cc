#include "kv_store_service/persistence/segment_catalog.h"

#include <gtest/gtest.h>

#include <string>

#include "common/status/error_reason.h"
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

TEST(SegmentCatalogTest, FindsWhatFollowsAParentTheNewestFirst) {
  SegmentCatalog catalog;
  const SegmentName parent = common::SaltHash("parent");
  const auto add = [&](uint64_t seed, uint32_t num_tokens, bool is_generated) {
    ManifestRow row = Row(seed, seed);
    row.record.parent = parent;
    row.record.num_tokens = num_tokens;
    row.record.created = At(static_cast<int64_t>(seed));
    if (is_generated) row.record.provenance.emplace();
    catalog.Insert(row);
    return row.record.name;
  };
  add(1, 1024, false);  // found by its name only, as is a full block
  add(2, 64, false);
  const SegmentName last = add(3, 63, false);
  const SegmentName segment = add(4, 1024, true);
  const SegmentName block = add(5, 64, true);
  const auto names = [&] {
    std::vector<SegmentName> found;
    for (const SegmentRecord& record : catalog.Children(parent)) found.push_back(record.name);
    return found;
  };
  EXPECT_EQ(names(), (std::vector<SegmentName>{block, segment, last}));
  catalog.Erase(segment);
  EXPECT_EQ(names(), (std::vector<SegmentName>{block, last}));
  for (uint64_t seed = 10; seed < 110; ++seed) add(seed, 64, true);
  EXPECT_EQ(names().size(), SegmentStorage::kMaxChildren);
  EXPECT_EQ(names()[0], Row(109, 0).record.name);
  catalog.Clear();
  EXPECT_TRUE(names().empty());
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

ContextRecord NamedContext(const std::string& tenant, int number, size_t num_segments = 1) {
  ContextRecord context;
  context.context_name = std::to_string(number);
  context.salt_hash = common::SaltHash(tenant);
  context.segments.assign(num_segments, Row(1, 1).record.name);
  return context;
}

TEST(SegmentCatalogTest, ATenantHasOnlySoManyContexts) {
  SegmentCatalog catalog;
  catalog.Insert(Row(1, 1));
  for (size_t i = 0; i < kMaxContextsOfTenant; ++i) {
    ASSERT_TRUE(catalog.CheckContext(NamedContext("a", int(i))).ok()) << i;
    catalog.PutContext(NamedContext("a", int(i)));
  }
  const absl::Status refused = catalog.CheckContext(NamedContext("a", 1'000'000));
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_EQ(common::ReasonOf(refused).reason, "TOO_MANY_CONTEXTS");
  EXPECT_TRUE(catalog.CheckContext(NamedContext("a", 1)).ok());  // replaces one
  EXPECT_TRUE(catalog.CheckContext(NamedContext("b", 1)).ok());
  catalog.EraseContext(common::SaltHash("a"), "7");
  EXPECT_TRUE(catalog.CheckContext(NamedContext("a", 1'000'000)).ok());
}

TEST(SegmentCatalogTest, AllContextsTogetherHaveOnlySoManySegments) {
  SegmentCatalog catalog;
  catalog.Insert(Row(1, 1));
  const size_t num_large = kMaxContextReferences / kMaxContextSegments;
  for (size_t i = 0; i < num_large; ++i) {
    const ContextRecord context = NamedContext("a", int(i), kMaxContextSegments);
    ASSERT_TRUE(catalog.CheckContext(context).ok()) << i;
    catalog.PutContext(context);
  }
  EXPECT_TRUE(absl::IsResourceExhausted(catalog.CheckContext(NamedContext("b", 0))));
  catalog.PutContext(NamedContext("a", 0, 5));  // replaces a large one
  EXPECT_TRUE(catalog.CheckContext(NamedContext("b", 0, kMaxContextSegments - 5)).ok());
  EXPECT_FALSE(catalog.CheckContext(NamedContext("b", 0, kMaxContextSegments - 4)).ok());
  catalog.Clear();
  catalog.Insert(Row(1, 1));
  EXPECT_TRUE(catalog.CheckContext(NamedContext("b", 0, kMaxContextSegments)).ok());
}

}  // namespace
}  // namespace retroinfer::kvstore
