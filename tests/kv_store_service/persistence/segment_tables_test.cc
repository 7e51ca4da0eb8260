#include "kv_store_service/persistence/segment_tables.h"

#include <gtest/gtest.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <filesystem>
#include <sstream>
#include <vector>

#include "tests/kv_store_service/persistence/sample_segments.h"

namespace retroinfer::kvstore {
namespace {

using testing::TempFolder;

TEST(SegmentTablesTest, RowsSurviveAReopen) {
  TempFolder folder;
  {
    const auto tables = SegmentTables::Open(folder.path(), {});
    ASSERT_TRUE(tables.ok()) << tables.status();
    rocksdb::WriteBatch batch;
    batch.Put((*tables)->handle(Table::kIndex), "b", "2");
    batch.Put((*tables)->handle(Table::kIndex), "a", "1");
    batch.Put((*tables)->handle(Table::kUsage), "a", "3");
    ASSERT_TRUE((*tables)->Write(&batch, /*sync=*/true).ok());
  }
  const auto tables = SegmentTables::Open(folder.path(), {});
  ASSERT_TRUE(tables.ok()) << tables.status();
  EXPECT_EQ(*(*tables)->Get(Table::kIndex, "a"), "1");
  EXPECT_EQ(*(*tables)->Get(Table::kUsage, "a"), "3");
  EXPECT_TRUE(absl::IsNotFound((*tables)->Get(Table::kManifest, "a").status()));
  std::vector<std::string> keys;
  ASSERT_TRUE(
      (*tables)->ForEach(Table::kIndex, [&](auto key, auto) { keys.emplace_back(key); }).ok());
  EXPECT_EQ(keys, (std::vector<std::string>{"a", "b"}));
  EXPECT_TRUE((*tables)->VerifyTables().ok());
  EXPECT_TRUE((*tables)->Resume().ok());
}

TEST(SegmentTablesTest, AFirstStartWarnsOfNothing) {
  TempFolder folder;
  std::ostringstream text;
  const auto former = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text)));
  const auto tables = SegmentTables::Open(folder.path(), {});
  spdlog::set_default_logger(former);
  ASSERT_TRUE(tables.ok()) << tables.status();
  EXPECT_EQ(text.str(), "");
}

TEST(SegmentTablesTest, DamageIsDataLoss) {
  TempFolder folder;
  ASSERT_TRUE(SegmentTables::Open(folder.path(), {}).ok());
  std::filesystem::resize_file(folder.path() + "/CURRENT", 3);
  EXPECT_TRUE(absl::IsDataLoss(SegmentTables::Open(folder.path(), {}).status()));
}

}  // namespace
}  // namespace retroinfer::kvstore
