#include "kv_store_service/persistence/segment_rows.h"

#include <gtest/gtest.h>

#include "tests/kv_store_service/persistence/sample_segments.h"

namespace retroinfer::kvstore {
namespace {

using testing::MakeSample;
using testing::Sample;
using testing::TempFolder;

class SegmentRowsTest : public ::testing::Test {
 protected:
  SegmentRowsTest() : tables_(*SegmentTables::Open(folder_.path(), {})) {
    sample_ = MakeSample(1, 5000);
    manifest_.record = sample_.record;
    manifest_.payload_id = 7;
    manifest_.chunk_bytes = 4096;
    rocksdb::WriteBatch batch;
    AddPendingRow(tables_.get(), 7, 2, &batch);
    EXPECT_TRUE(tables_->Write(&batch, false).ok());
    EXPECT_TRUE(tables_->Get(Table::kPending, PayloadIdKey(7)).ok());
    rocksdb::WriteBatch commit;
    AddSegmentRows(tables_.get(), {sample_.token_ids, {1, 2}}, &manifest_, &commit);
    EXPECT_TRUE(tables_->Write(&commit, false).ok());
  }

  TempFolder folder_;
  std::unique_ptr<SegmentTables> tables_;
  Sample sample_;
  ManifestRow manifest_;
};

TEST_F(SegmentRowsTest, ASegmentIsThreeRowsAndNoPendingOne) {
  const std::string_view key = sample_.name().view();
  EXPECT_TRUE(DecodeManifest(key, *tables_->Get(Table::kManifest, key)).ok());
  EXPECT_TRUE(DecodeUsage(key, *tables_->Get(Table::kUsage, key)).ok());
  EXPECT_EQ(LoadIndexRow(tables_.get(), manifest_)->token_ids, sample_.token_ids);
  EXPECT_FALSE(tables_->Get(Table::kPending, PayloadIdKey(7)).ok());
  rocksdb::WriteBatch batch;
  RemoveSegmentRows(tables_.get(), sample_.name(), &batch);
  ASSERT_TRUE(tables_->Write(&batch, false).ok());
  for (Table table : {Table::kManifest, Table::kIndex, Table::kUsage}) {
    EXPECT_FALSE(tables_->Get(table, key).ok());
  }
}

TEST_F(SegmentRowsTest, ChecksumsOfPartsAreThoseOfThePayloadAndGoWithTheSegment) {
  EXPECT_FALSE(LoadPartsRow(tables_.get(), manifest_).has_value());
  const auto note = [this](const PartsRow& parts) {
    rocksdb::WriteBatch batch;
    AddPartsRow(tables_.get(), sample_.name(), parts, &batch);
    ASSERT_TRUE(tables_->Write(&batch, false).ok());
  };
  note({.payload_id = 7, .part_bytes = 4096, .part_crcs = {5, 6}});
  EXPECT_EQ(LoadPartsRow(tables_.get(), manifest_)->part_crcs, (std::vector<uint32_t>{5, 6}));
  note({.payload_id = 8, .part_bytes = 4096, .part_crcs = {5, 6}});
  EXPECT_FALSE(LoadPartsRow(tables_.get(), manifest_).has_value());
  note({.payload_id = 7, .part_bytes = 4096, .part_crcs = {5, 6, 7}});
  EXPECT_FALSE(LoadPartsRow(tables_.get(), manifest_).has_value());
  note({.payload_id = 7, .part_bytes = 3000, .part_crcs = {5, 6}});
  EXPECT_FALSE(LoadPartsRow(tables_.get(), manifest_).has_value());
  rocksdb::WriteBatch batch;
  RemoveSegmentRows(tables_.get(), sample_.name(), &batch);
  ASSERT_TRUE(tables_->Write(&batch, false).ok());
  EXPECT_FALSE(tables_->Get(Table::kIndex, PartsKey(sample_.name())).ok());
}

TEST_F(SegmentRowsTest, AnIndexRowThatDoesNotFitIsDataLoss) {
  ManifestRow other = manifest_;
  ++other.index_crc;
  EXPECT_TRUE(absl::IsDataLoss(LoadIndexRow(tables_.get(), other).status()));
  other = manifest_;
  ++other.record.num_tokens;
  EXPECT_TRUE(absl::IsDataLoss(LoadIndexRow(tables_.get(), other).status()));
  other = manifest_;
  other.record.image_bytes = 10'000;
  EXPECT_TRUE(absl::IsDataLoss(LoadIndexRow(tables_.get(), other).status()));
  other.record.name = MakeSample(2).name();
  EXPECT_TRUE(absl::IsDataLoss(LoadIndexRow(tables_.get(), other).status()));
}

}  // namespace
}  // namespace retroinfer::kvstore
