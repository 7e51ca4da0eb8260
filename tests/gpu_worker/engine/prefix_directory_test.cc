#include "gpu_worker/engine/prefix_directory.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace retroinfer {
namespace {

NamedPrefix Prefix(std::string_view salt) {
  return NamePrefix(std::vector<int32_t>(3000, 7), 2048, "a model", salt);
}

TEST(PrefixDirectoryTest, EqualPrefixesHaveOneNumber) {
  PrefixDirectory prefixes;
  const uint64_t first = prefixes.Acquire(Prefix("a"));
  EXPECT_NE(first, 0u);
  EXPECT_EQ(prefixes.Acquire(Prefix("a")), first);
  EXPECT_NE(prefixes.Acquire(Prefix("b")), first);
}

TEST(PrefixDirectoryTest, WhatHasNoNamedSegmentHasNone) {
  PrefixDirectory prefixes;
  EXPECT_EQ(prefixes.Acquire({}), 0u);
  prefixes.Release({});
}

TEST(PrefixDirectoryTest, ANumberIsKeptWhileItIsUsedAndAWhileAfterThat) {
  PrefixDirectory prefixes;
  const NamedPrefix used = Prefix("used"), idle = Prefix("idle");
  const uint64_t of_used = prefixes.Acquire(used);
  const uint64_t of_idle = prefixes.Acquire(idle);
  prefixes.Release(idle);
  EXPECT_EQ(prefixes.Acquire(idle), of_idle);
  prefixes.Release(idle);
  for (size_t i = 0; i < PrefixDirectory::kRemembered; ++i) {
    const NamedPrefix other = Prefix(absl::StrCat("other ", i));
    prefixes.Acquire(other);
    prefixes.Release(other);
  }
  EXPECT_EQ(prefixes.Acquire(used), of_used);
  EXPECT_GT(prefixes.Acquire(idle), of_idle) << "forgotten; numbers are not used again";
}

}  // namespace
}  // namespace retroinfer
