#include "gpu_worker/ranks/result_merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace retroinfer {
namespace {

using testing::HasSubstr;
using Read = CommandResult::Read;

CommandResult Typical() {
  CommandResult result;
  result.without_memory = {9};
  result.progress = {{.id = 1, .processed_tokens = 10}, {.id = 2, .processed_tokens = 20}};
  result.read.resize(2);
  result.read[0] = {.id = 1, .end = Read::End::kPrompt, .num_tokens = 10};
  result.read[1] = {.id = 2, .end = Read::End::kPart, .num_tokens = 20};
  result.measured = {{.id = 1, .tokens = {}}};
  result.finished = {3, 4};
  result.rows.resize(2);
  return result;
}

TEST(ResultMergeTest, WhatIsTheSameStays) {
  CommandResult own = Typical();
  EXPECT_TRUE(MergeResult(1, Typical(), own).ok());
  EXPECT_TRUE(own.failed.empty());
  EXPECT_EQ(own.read.size(), 2u);
  EXPECT_EQ(own.rows.size(), 2u);
}

TEST(ResultMergeTest, WhatFailsOnOneRankFails) {
  CommandResult own = Typical(), other = Typical();
  other.failed.push_back({1, absl::InternalError("of the device")});
  other.read.erase(other.read.begin());
  other.progress.erase(other.progress.begin());
  other.finished = {3};
  other.failed.push_back({4, absl::InternalError("as well")});
  ASSERT_TRUE(MergeResult(3, other, own).ok());
  ASSERT_NE(own.FailureOf(1), nullptr);
  EXPECT_EQ(*own.FailureOf(1), absl::InternalError("rank 3: of the device"));
  ASSERT_NE(own.FailureOf(4), nullptr);
  ASSERT_EQ(own.read.size(), 1u);
  EXPECT_EQ(own.read[0].id, 2u);
  EXPECT_EQ(own.progress.size(), 1u);
  EXPECT_TRUE(own.measured.empty());
  EXPECT_EQ(own.finished, std::vector<uint64_t>{3});
}

// The same the other way round: rank 0 has failed for a sequence, which another rank has read.
TEST(ResultMergeTest, WhatFailsOnRankZeroAloneIsNoDifference) {
  CommandResult own = Typical();
  own.failed.push_back({1, absl::InternalError("here")});
  own.read.erase(own.read.begin());
  own.progress.erase(own.progress.begin());
  ASSERT_TRUE(MergeResult(1, Typical(), own).ok());
  EXPECT_EQ(own.failed.size(), 1u);
  EXPECT_EQ(*own.FailureOf(1), absl::InternalError("here"));
}

TEST(ResultMergeTest, AStepThatFailsOnOneRankFails) {
  CommandResult own = Typical(), other = Typical();
  other.step = absl::UnavailableError("lost");
  ASSERT_TRUE(MergeResult(2, other, own).ok());
  EXPECT_EQ(own.step, absl::UnavailableError("rank 2: lost"));
  EXPECT_TRUE(own.rows.empty());
  own.step = absl::InternalError("its own");
  ASSERT_TRUE(MergeResult(2, other, own).ok());
  EXPECT_EQ(own.step, absl::InternalError("its own"));
}

TEST(ResultMergeTest, EachDifferenceIsNamed) {
  const struct {
    std::function<void(CommandResult&)> change;
    const char* what;
  } cases[] = {
      {[](CommandResult& r) { r.refused = absl::InternalError("no such sequence"); },
       "no such sequence"},
      {[](CommandResult& r) { r.without_memory.clear(); }, "memory"},
      {[](CommandResult& r) { r.progress[1].processed_tokens = 21; }, "how far"},
      {[](CommandResult& r) { r.progress.pop_back(); }, "how far"},
      {[](CommandResult& r) { r.read[1].num_tokens = 21; }, "are read"},
      {[](CommandResult& r) { r.read[1].end = Read::End::kPartInOrder; }, "are read"},
      {[](CommandResult& r) {
         r.finished = {4, 3};
       },
       "finished"},
      {[](CommandResult& r) {
         r.unsaved.push_back({1, absl::InternalError("")});
       },
       "saved"},
  };
  for (const auto& one : cases) {
    CommandResult own = Typical(), other = Typical();
    one.change(other);
    const absl::Status status = MergeResult(5, other, own);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << one.what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(one.what));
    EXPECT_THAT(std::string(status.message()), HasSubstr("rank 5"));
  }
}

}  // namespace
}  // namespace retroinfer
