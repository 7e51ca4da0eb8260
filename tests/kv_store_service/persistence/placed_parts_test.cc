#include "kv_store_service/persistence/placed_parts.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "common/hash/crc32c.h"
#include "kv_store_service/persistence/segment_rows.h"
#include "tests/kv_store_service/persistence/sample_segments.h"

namespace retroinfer::kvstore {
namespace {

using testing::MakeSample;
using testing::Sample;
using testing::TempFolder;

constexpr uint32_t kChunkBytes = 16384;

class PlacedPartsTest : public ::testing::Test {
 protected:
  PlacedPartsTest()
      : tables_(*SegmentTables::Open(folder_.path(), {})), payloads_(tables_.get(), 2) {
    row_.record = sample_.record;
    row_.payload_id = 1;
    row_.chunk_bytes = kChunkBytes;
    IndexRow index{.token_ids = sample_.token_ids, .chunk_crcs = {}};
    index.chunk_crcs = *payloads_.Write(1, sample_.image, kChunkBytes, [] {});
    rocksdb::WriteBatch batch;
    AddSegmentRows(tables_.get(), index, &row_, &batch);
    EXPECT_TRUE(tables_->Write(&batch, true).ok());
  }

  void NoteParts(uint64_t payload_id) {
    rocksdb::WriteBatch batch;
    AddPartsRow(tables_.get(), row_.record.name, PartsOf(payload_id, sample_.image), &batch);
    ASSERT_TRUE(tables_->Write(&batch, true).ok());
  }
  std::unique_ptr<ImageParts> Open() {
    return *PlacedParts::Open({tables_.get(), &payloads_, folder_.path(), &reads_}, row_,
                              [this](absl::Status status) {
                                ++num_errors_;
                                return status;
                              });
  }
  // Changes a byte of each blob file from `offset` of the image's on.
  void Damage(size_t chunk, size_t offset) {
    const ChunkPlace place = (*FindPlaces(tables_.get(), 1, row_.num_chunks()))[chunk];
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      if (entry.path().extension() != ".blob") continue;
      std::fstream file(entry.path(), std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(static_cast<std::streamoff>(place.offset + offset));
      file.put(static_cast<char>(~static_cast<int>(sample_.image[chunk * kChunkBytes + offset])));
    }
  }

  TempFolder folder_;
  const Sample sample_ = MakeSample(1, 100'000);
  std::unique_ptr<SegmentTables> tables_;
  PayloadTable payloads_;
  ReadPool reads_{4, kPartBufferBytes};
  ManifestRow row_;
  int num_errors_ = 0;
};

TEST_F(PlacedPartsTest, ReadsPartsOfSeveralChunks) {
  NoteParts(1);
  const auto parts = Open();
  ASSERT_NE(parts, nullptr);
  std::vector<std::byte> image(sample_.image.size());
  ASSERT_TRUE(parts->Read(std::vector<PartRun>{{3, 10}}, image).ok());
  const auto begin = 3 * kPartBytes, end = 13 * kPartBytes;
  EXPECT_TRUE(
      std::equal(image.begin() + begin, image.begin() + end, sample_.image.begin() + begin));
  EXPECT_EQ(image[begin - 1], std::byte{0});
  EXPECT_EQ(image[end], std::byte{0});
}

TEST_F(PlacedPartsTest, ImagesOfEarlierVersionsAreReadAsAWholeOrInTheirParts) {
  EXPECT_EQ(Open(), nullptr);  // without checksums of parts
  NoteParts(2);                // those of another payload of the same name
  EXPECT_EQ(Open(), nullptr);
  PartsRow larger{.payload_id = 1, .part_bytes = 4096, .part_crcs = {}};
  for (size_t begin = 0; begin < sample_.image.size(); begin += 4096) {
    larger.part_crcs.push_back(
        common::Crc32c(std::span(sample_.image)
                           .subspan(begin, std::min<size_t>(4096, sample_.image.size() - begin))));
  }
  rocksdb::WriteBatch batch;
  AddPartsRow(tables_.get(), row_.record.name, larger, &batch);
  ASSERT_TRUE(tables_->Write(&batch, true).ok());
  const auto parts = Open();
  ASSERT_NE(parts, nullptr);
  EXPECT_EQ(parts->num_parts(), 25u);
  std::vector<std::byte> image(sample_.image.size());
  ASSERT_TRUE(parts->Read(std::vector<PartRun>{{0, 25}}, image).ok());
  EXPECT_TRUE(std::ranges::equal(image, sample_.image));
}

TEST_F(PlacedPartsTest, ADamagedPartIsDataLossAndTheOthersAreRead) {
  NoteParts(1);
  Damage(2, 5000);  // in part 18
  const auto parts = Open();
  ASSERT_NE(parts, nullptr);
  std::vector<std::byte> image(sample_.image.size());
  EXPECT_TRUE(parts->Read(std::vector<PartRun>{{0, 18}, {19, 30}}, image).ok());
  EXPECT_EQ(num_errors_, 0);
  EXPECT_TRUE(absl::IsDataLoss(parts->Read(std::vector<PartRun>{{17, 3}}, image)));
  EXPECT_EQ(num_errors_, 1);
}

TEST_F(PlacedPartsTest, AWrongChecksumOfAPartIsFoundThoughItsChunkIsRight) {
  rocksdb::WriteBatch batch;
  PartsRow wrong = PartsOf(1, sample_.image);
  ++wrong.part_crcs[4];
  AddPartsRow(tables_.get(), row_.record.name, wrong, &batch);
  ASSERT_TRUE(tables_->Write(&batch, true).ok());
  const auto parts = Open();
  ASSERT_NE(parts, nullptr);
  std::vector<std::byte> image(sample_.image.size());
  EXPECT_TRUE(absl::IsDataLoss(parts->Read(std::vector<PartRun>{{4, 1}}, image)));
  EXPECT_TRUE(parts->Read(std::vector<PartRun>{{5, 1}}, image).ok());
}

}  // namespace
}  // namespace retroinfer::kvstore
