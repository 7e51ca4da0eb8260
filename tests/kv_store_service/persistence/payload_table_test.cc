#include "kv_store_service/persistence/payload_table.h"

#include <gtest/gtest.h>

#include "common/hash/crc32c.h"
#include "kv_store_service/persistence/segment_codec.h"
#include "tests/kv_store_service/persistence/sample_segments.h"

namespace retroinfer::kvstore {
namespace {

using testing::SampleImage;
using testing::TempFolder;

class PayloadTableTest : public ::testing::Test {
 protected:
  PayloadTableTest()
      : tables_(*SegmentTables::Open(folder_.path(), {})), payloads_(tables_.get(), 4) {}

  TempFolder folder_;
  std::unique_ptr<SegmentTables> tables_;
  PayloadTable payloads_;
};

TEST_F(PayloadTableTest, ReadsWhatWasWritten) {
  for (size_t bytes : {1, 4096, 4097, 50000}) {
    const std::vector<std::byte> image = SampleImage(bytes, bytes);
    int half_ways = 0;
    const auto crcs = payloads_.Write(bytes, image, 4096, [&] { ++half_ways; });
    ASSERT_TRUE(crcs.ok());
    EXPECT_EQ(crcs->size(), (bytes + 4095) / 4096);
    EXPECT_EQ(crcs->back(), common::Crc32c(std::span(image).subspan((crcs->size() - 1) * 4096)));
    EXPECT_LE(half_ways, 1);
    std::vector<std::byte> again(bytes);
    EXPECT_TRUE(payloads_.Read(bytes, 4096, *crcs, again).ok());
    EXPECT_EQ(again, image);
  }
}

TEST_F(PayloadTableTest, WrongMissingAndShortChunksAreDataLoss) {
  const std::vector<std::byte> image = SampleImage(1, 20000);
  std::vector<uint32_t> crcs = *payloads_.Write(1, image, 4096, [] {});
  std::vector<std::byte> again(image.size());
  ++crcs[3];
  EXPECT_TRUE(absl::IsDataLoss(payloads_.Read(1, 4096, crcs, again)));
  --crcs[3];
  EXPECT_TRUE(absl::IsDataLoss(payloads_.Read(2, 4096, crcs, again)));
  EXPECT_TRUE(
      absl::IsDataLoss(payloads_.Read(1, 4096, std::span<const uint32_t>(crcs).first(4), again)));
  rocksdb::WriteOptions options;
  ASSERT_TRUE(
      tables_->db().Put(options, tables_->handle(Table::kPayload), ChunkKey(1, 2), "short").ok());
  EXPECT_TRUE(absl::IsDataLoss(payloads_.Read(1, 4096, crcs, again)));
}

TEST_F(PayloadTableTest, RemovesOnlyWhatIsNamed) {
  const std::vector<std::byte> image = SampleImage(1, 20000);
  std::vector<uint32_t> crcs;
  for (uint64_t id : {1, 2, 3}) crcs = *payloads_.Write(id, image, 4096, [] {});
  const std::vector<PayloadTable::Chunks> removed = {{1, 5}, {3, 5}};
  ASSERT_TRUE(payloads_.Remove(removed).ok());
  std::vector<std::byte> again(image.size());
  EXPECT_TRUE(absl::IsDataLoss(payloads_.Read(1, 4096, crcs, again)));
  EXPECT_TRUE(payloads_.Read(2, 4096, crcs, again).ok());
  EXPECT_TRUE(absl::IsDataLoss(payloads_.Read(3, 4096, crcs, again)));
}

}  // namespace
}  // namespace retroinfer::kvstore
