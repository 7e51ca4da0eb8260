#include "common/hash/sha256.h"

#include <gtest/gtest.h>

#include <vector>

namespace retroinfer::common {
namespace {

TEST(Sha256Test, HashesTheFieldsInOrder) {
  // printf '\x01\0\0\0\0\0\0\0dabc\x04\x03\x02\x01' | sha256sum
  const Hash256 hash = Sha256("d").Add("abc").AddU32(0x01020304).Finish();
  EXPECT_EQ(hash.ToHex(), "06f18b8af202062478aba40cbbcae125f83a771406df041b8c00c096b9a5800e");
}

TEST(Sha256Test, NumbersAreLittleEndianOfTheirWidth) {
  const std::vector<int32_t> values = {1, -1};
  EXPECT_EQ(Sha256("x").AddU64(0xffffffff'00000001).Finish(), Sha256("x").AddI32s(values).Finish());
  EXPECT_NE(Sha256("x").AddU64(1).Finish(), Sha256("x").AddU32(1).Finish());
}

TEST(Sha256Test, TheDomainIsKeptApartFromTheContent) {
  EXPECT_NE(Sha256("ab").Add("c").Finish(), Sha256("a").Add("bc").Finish());
}

TEST(Hash256Test, HexAndBytesRoundTrip) {
  const Hash256 hash = Sha256("a").Finish();
  EXPECT_EQ(*Hash256::FromHex(hash.ToHex()), hash);
  EXPECT_EQ(*Hash256::FromBytes(hash.view()), hash);
}

TEST(Hash256Test, RefusesWhatIsNotAHash) {
  EXPECT_FALSE(Hash256::FromHex("").ok());
  EXPECT_FALSE(Hash256::FromHex(std::string(63, 'a')).ok());
  EXPECT_FALSE(Hash256::FromHex(std::string(63, 'a') + "g").ok());
  EXPECT_FALSE(Hash256::FromBytes("short").ok());
}

}  // namespace
}  // namespace retroinfer::common
