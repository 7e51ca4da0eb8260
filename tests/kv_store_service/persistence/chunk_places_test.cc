#include "kv_store_service/persistence/chunk_places.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "absl/strings/str_format.h"
#include "kv_store_service/persistence/payload_table.h"
#include "tests/kv_store_service/persistence/sample_segments.h"

namespace retroinfer::kvstore {
namespace {

using testing::SampleImage;
using testing::TempFolder;

constexpr uint32_t kChunkBytes = 4096;

class ChunkPlacesTest : public ::testing::Test {
 protected:
  ChunkPlacesTest() : tables_(*SegmentTables::Open(folder_.path(), {})) {}

  std::vector<std::byte> Put(uint64_t payload_id, size_t bytes) {
    std::vector<std::byte> image = SampleImage(payload_id, bytes);
    PayloadTable payloads(tables_.get(), 1);
    EXPECT_TRUE(payloads.Write(payload_id, image, kChunkBytes, [] {}).ok());
    return image;
  }
  std::vector<std::byte> ReadAt(const ChunkPlace& place) const {
    std::ifstream file(absl::StrFormat("%s/%06d.blob", folder_.path(), place.file_number),
                       std::ios::binary);
    std::vector<std::byte> bytes(place.num_bytes);
    file.seekg(static_cast<std::streamoff>(place.offset));
    file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    EXPECT_TRUE(file.good());
    return bytes;
  }
  void ExpectPlaced(uint64_t payload_id, const std::vector<std::byte>& image) {
    const size_t num_chunks = (image.size() + kChunkBytes - 1) / kChunkBytes;
    const auto places = FindPlaces(tables_.get(), payload_id, num_chunks);
    ASSERT_TRUE(places.has_value());
    ASSERT_EQ(places->size(), num_chunks);
    for (size_t i = 0; i < num_chunks; ++i) {
      const std::vector<std::byte> bytes = ReadAt((*places)[i]);
      ASSERT_LE(i * kChunkBytes + bytes.size(), image.size());
      EXPECT_EQ(std::memcmp(bytes.data(), image.data() + i * kChunkBytes, bytes.size()), 0) << i;
    }
  }

  TempFolder folder_;
  std::unique_ptr<SegmentTables> tables_;
};

TEST_F(ChunkPlacesTest, ChunksLieWhereTheTableSays) {
  for (const uint64_t id : {1, 2, 3}) ExpectPlaced(id, Put(id, 50000 * id + id));
}

TEST_F(ChunkPlacesTest, PlacesOutliveCompactionAndTheProcess) {
  const std::vector<std::byte> first = Put(1, 30000), second = Put(2, 50000), third = Put(3, 9000);
  PayloadTable payloads(tables_.get(), 1);
  ASSERT_TRUE(payloads.Remove(std::vector<PayloadTable::Chunks>{{2, 13}}).ok());
  ExpectPlaced(1, first);
  ExpectPlaced(3, third);
  EXPECT_FALSE(FindPlaces(tables_.get(), 2, 13).has_value());
  tables_.reset();
  tables_ = *SegmentTables::Open(folder_.path(), {});
  ExpectPlaced(1, first);
  ExpectPlaced(3, third);
}

TEST_F(ChunkPlacesTest, APayloadWithMoreChunksThanAreKnownHasNoPlaces) {
  Put(1, 30000);
  EXPECT_FALSE(FindPlaces(tables_.get(), 1, 9).has_value());
  EXPECT_FALSE(FindPlaces(tables_.get(), 9, 1).has_value());
}

}  // namespace
}  // namespace retroinfer::kvstore
