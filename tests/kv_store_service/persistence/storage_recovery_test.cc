#include "kv_store_service/persistence/storage_recovery.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "kv_store_service/persistence/rocksdb_segment_storage.h"
#include "tests/kv_store_service/persistence/sample_segments.h"
#include "tests/support/storage/in_memory_segment_storage.h"

namespace retroinfer::kvstore {
namespace {

using testing::At;
using testing::CheckSample;
using testing::MakeSample;
using testing::PutSample;
using testing::SampleImage;
using testing::TempFolder;

class StorageRecoveryTest : public ::testing::Test {
 protected:
  StorageRecoveryTest()
      : tables_(*SegmentTables::Open(folder_.path(), {})), payloads_(tables_.get(), 1) {}

  // Writes the rows and the payload of a segment.
  void AddSegment(uint64_t seed, uint64_t payload_id) {
    ManifestRow row;
    row.record = MakeSample(seed, 5000).record;
    row.payload_id = payload_id;
    row.chunk_bytes = 4096;
    Put(Table::kManifest, std::string(row.record.name.view()), EncodeManifest(row));
    AddPayload(payload_id);
  }
  void AddPayload(uint64_t payload_id) {
    ASSERT_TRUE(payloads_.Write(payload_id, SampleImage(payload_id, 5000), 4096, [] {}).ok());
  }
  void Put(Table table, const std::string& key, const std::string& value) {
    ASSERT_TRUE(tables_->db().Put({}, tables_->handle(table), key, value).ok());
  }
  bool HasPayload(uint64_t payload_id) {
    std::string value;
    return tables_->db()
        .Get({}, tables_->handle(Table::kPayload), ChunkKey(payload_id, 1), &value)
        .ok();
  }
  RecoveredRows Recover(bool sweep) {
    catalog_ = std::make_unique<SegmentCatalog>();
    auto rows = RecoverRows(tables_.get(), &payloads_, catalog_.get(), sweep, At(0));
    EXPECT_TRUE(rows.ok()) << rows.status();
    return *std::move(rows);
  }

  TempFolder folder_;
  std::unique_ptr<SegmentTables> tables_;
  PayloadTable payloads_;
  std::unique_ptr<SegmentCatalog> catalog_;
};

TEST_F(StorageRecoveryTest, RemovesPendingPayloads) {
  AddSegment(1, 1);
  AddPayload(2);
  Put(Table::kPending, PayloadIdKey(2), EncodePending(2, 2));
  const RecoveredRows rows = Recover(/*sweep=*/false);
  EXPECT_EQ(rows.orphans_removed, 1u);
  EXPECT_EQ(rows.next_payload_id, 3u);
  EXPECT_TRUE(HasPayload(1));
  EXPECT_FALSE(HasPayload(2));
  EXPECT_EQ(Recover(false).orphans_removed, 0u);
}

TEST_F(StorageRecoveryTest, ASweepFindsPayloadsThatNobodyOwns) {
  AddSegment(1, 2);
  AddSegment(2, 5);
  for (uint64_t id : {1, 3, 4, 9}) AddPayload(id);
  Put(Table::kQuarantine, PayloadIdKey(4),
      EncodeQuarantine({MakeSample(3).name(), 4, 2, At(0), "test"}));
  EXPECT_EQ(Recover(/*sweep=*/false).orphans_removed, 0u);
  const RecoveredRows rows = Recover(/*sweep=*/true);
  EXPECT_EQ(rows.orphans_removed, 3u);
  EXPECT_GE(rows.next_payload_id, 10u);
  for (uint64_t id : {2, 4, 5}) EXPECT_TRUE(HasPayload(id)) << id;
  for (uint64_t id : {1, 3, 9}) EXPECT_FALSE(HasPayload(id)) << id;
}

TEST_F(StorageRecoveryTest, ADamagedManifestGoesIntoQuarantineAndItsPayloadAway) {
  AddSegment(1, 1);
  Put(Table::kManifest, std::string(MakeSample(2).name().view()), "garbage");
  AddPayload(2);
  RecoveredRows rows = Recover(/*sweep=*/false);
  EXPECT_EQ(rows.corrupt_rows, 1u);
  ASSERT_EQ(rows.quarantine.size(), 1u);
  EXPECT_EQ(rows.quarantine.begin()->second.name, MakeSample(2).name());
  EXPECT_FALSE(HasPayload(2));
  EXPECT_TRUE(HasPayload(1));
  rows = Recover(/*sweep=*/false);  // it stays there, and is not counted again
  EXPECT_EQ(rows.corrupt_rows, 0u);
  EXPECT_EQ(rows.quarantine.size(), 1u);
  EXPECT_EQ(catalog_->totals().segments, 1u);
}

TEST(SalvageDatabaseTest, CopiesWhatIsIntact) {
  TempFolder folder;
  {
    RocksDbStorageOptions options;
    options.folder = folder.path();
    options.reserve_bytes = 0;
    auto storage = OpenRocksDbSegmentStorage(options);
    ASSERT_TRUE(storage.ok());
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(PutSample(**storage, MakeSample(i)).ok());
  }
  {
    auto tables = SegmentTables::Open(folder.path() + "/db", {});
    ASSERT_TRUE(tables.ok());
    ASSERT_TRUE((*tables)
                    ->db()
                    .Put({}, (*tables)->handle(Table::kPayload), ChunkKey(1, 0), "garbage")
                    .ok());
    ASSERT_TRUE((*tables)
                    ->db()
                    .Put({}, (*tables)->handle(Table::kManifest),
                         ToSlice(MakeSample(1).name().view()), "garbage")
                    .ok());
  }
  const auto target = MakeInMemorySegmentStorage();
  const auto copied = SalvageDatabase(folder.path() + "/db", target.get());
  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_EQ(*copied, 3u);
  for (int i = 2; i < 5; ++i) EXPECT_TRUE(CheckSample(*target, MakeSample(i)).ok());
}

}  // namespace
}  // namespace retroinfer::kvstore
