#include "kv_store_service/directory/image_reading.h"

#include <gtest/gtest.h>

#include <array>

#include "tests/kv_store_service/segment_writer.h"

namespace retroinfer::kvstore {
namespace {

TEST(ReadImagesOfTest, ReadsEachAndSaysWhichIsNone) {
  const uint32_t pages = SegmentLayout(kTinyGeometry, 1024).max_pages;
  const uint64_t bytes = (uint64_t{pages} * 2 * kPageBytes + 4095) / 4096 * 4096;
  const Arena arena(*common::SealedMemory::Create("test arena", bytes, 1));
  const uint32_t used = WriteSegment(arena.BytesOf({0, pages}), kTinyGeometry, 4, 1024);
  const std::array<ImageToRead, 2> images = {ImageToRead{7, {0, pages}, 4, 1024},
                                             ImageToRead{8, {pages, pages}, 4, 1024}};
  const ReadImages read = ReadImagesOf(arena, kTinyGeometry, images);
  ASSERT_TRUE(read.at(7).ok()) << read.at(7).status();
  EXPECT_EQ(read.at(7)->used_pages, used);
  EXPECT_TRUE(absl::IsInvalidArgument(read.at(8).status()));
}

TEST(ArenaTest, KnowsItsOwnMemoryByAnotherDescriptor) {
  const Arena arena(*common::SealedMemory::Create("test arena", 8192, 1));
  const Arena again(*common::SealedMemory::Adopt(common::UniqueFd(::dup(arena.fd())), 8192));
  const Arena other(*common::SealedMemory::Create("test arena", 8192, 1));
  EXPECT_TRUE(arena.IsSameMemory(again));
  EXPECT_FALSE(arena.IsSameMemory(other));
  arena.BytesOf({1, 1}).front() = std::byte{9};
  EXPECT_EQ(again.BytesOf({1, 1}).front(), std::byte{9});
  EXPECT_EQ(again.num_pages(), 8192 / kPageBytes);
}

}  // namespace
}  // namespace retroinfer::kvstore
