#include "common/hash/segment_name.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace retroinfer::common {
namespace {

TEST(SegmentNameTest, EverythingThatChangesKvChangesTheRoot) {
  const std::set<SegmentName> roots = {
      RootName("model", SaltHash("salt"), 1),
      RootName("model2", SaltHash("salt"), 1),
      RootName("model", SaltHash("salt2"), 1),
      RootName("model", SaltHash(""), 1),
      RootName("model", SaltHash("salt"), 2),
      RootName("model", SaltHashOfForm(SaltHash("salt"), "a"), 1),
      RootName("model", SaltHashOfForm(SaltHash("salt"), "b"), 1),
      RootName("model", SaltHashOfForm(SaltHash("salt2"), "a"), 1)};
  EXPECT_EQ(roots.size(), 8u);
}

TEST(SegmentNameTest, TheChainDependsOnEveryTokenAndEveryCut) {
  const SegmentName root = RootName("model", SaltHash(""), 1);
  const std::vector<int32_t> tokens = {1, 2, 3, 4, 5, 6};
  const std::span<const int32_t> all(tokens);
  std::set<SegmentName> names = {NameSegment(root, all), NameSegment(root, all.first(5)),
                                 NameSegment(NameSegment(root, all.first(3)), all.last(3)),
                                 NameSegment(NameSegment(root, all.first(2)), all.last(4)), root};
  EXPECT_EQ(names.size(), 5u);
  for (size_t i = 0; i < tokens.size(); ++i) {
    std::vector<int32_t> changed = tokens;
    ++changed[i];
    names.insert(NameSegment(root, changed));
  }
  EXPECT_EQ(names.size(), 11u);
}

TEST(SegmentNameTest, IsStable) {
  // Durable: a change of this value makes every stored segment unreachable.
  const std::vector<int32_t> sink = {128000, 1, 2, 3};
  EXPECT_EQ(NameSegment(RootName("fp", SaltHash("s"), 1), sink).ToHex(),
            "156c04ecc159082e3f6de11e54e9b2befad8363b46dcdd7ffbea6442e95649e6");
}

TEST(SegmentNameTest, TheSaltHashIsNotAPlainHashOfTheSalt) {
  EXPECT_NE(SaltHash("secret"), FingerprintHash("secret"));
  EXPECT_EQ(SaltHash("secret"), SaltHash("secret"));
}

}  // namespace
}  // namespace retroinfer::common
