#include "common/hash/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string_view>
#include <vector>

namespace retroinfer::common {
namespace {

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// One bit at a time, straight from the definition.
uint32_t BitwiseCrc32c(std::span<const std::byte> data) {
  uint32_t crc = 0xffffffff;
  for (std::byte byte : data) {
    crc ^= static_cast<uint32_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? 0x82f63b78u : 0);
  }
  return ~crc;
}

TEST(Crc32cTest, VectorsOfRfc3720) {
  const std::vector<std::byte> zeros(32, std::byte{0});
  const std::vector<std::byte> ones(32, std::byte{0xff});
  EXPECT_EQ(Crc32c({}), 0u);
  EXPECT_EQ(Crc32c(Bytes("123456789")), 0xe3069283u);
  EXPECT_EQ(Crc32c(zeros), 0x8a9136aau);
  EXPECT_EQ(Crc32c(ones), 0x62a8ab43u);
}

TEST(Crc32cTest, IsThatOfTheDefinitionAtEverySizeAndAlignment) {
  std::mt19937_64 random(7);
  std::vector<std::byte> data(40000);
  for (std::byte& byte : data) byte = static_cast<std::byte>(random());
  for (size_t size : {0, 1, 7, 8, 9, 31, 32, 33, 4095, 12287, 12288, 12289, 24576, 36999}) {
    for (size_t offset : {0, 1, 3, 8}) {
      const auto part = std::span<const std::byte>(data).subspan(offset, size);
      const uint32_t expected = BitwiseCrc32c(part);
      EXPECT_EQ(Crc32c(part), expected) << size << " at " << offset;
    }
  }
}

TEST(Crc32cTest, Continues) {
  std::vector<std::byte> data(30000);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::byte>(i * 31);
  const std::span<const std::byte> all(data);
  for (size_t cut : {1, 17, 12288, 29999}) {
    EXPECT_EQ(Crc32c(all.subspan(cut), Crc32c(all.first(cut))), Crc32c(all));
  }
}

TEST(Crc32cTest, EverySingleBitFlipChangesIt) {
  std::vector<std::byte> data(13000, std::byte{0x5a});
  const uint32_t intact = Crc32c(data);
  for (size_t bit = 0; bit < data.size() * 8; bit += 97) {
    data[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    EXPECT_NE(Crc32c(data), intact);
    data[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
  }
}

}  // namespace
}  // namespace retroinfer::common
