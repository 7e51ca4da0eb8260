// What can go wrong with processes that are no ranks; real ones are in tests/integration.
#include "gpu_worker/assembly/other_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer {
namespace {

using testing::HasSubstr;

const common::ServiceNotifier silent;

absl::Status MeetProcess(std::vector<std::string> program) {
  ServedEngineOptions options;
  options.num_ranks = 3;
  options.rank_program = std::move(program);
  auto ranks = OtherRanks::Start(options, silent);
  if (!ranks.ok()) return ranks.status();
  return (*ranks)->Meet({.rank = 0, .num_ranks = 3}).status();
}

TEST(OtherRanksTest, NeedAProgram) {
  EXPECT_EQ(MeetProcess({}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::IsNotFound(MeetProcess({"/nowhere/gpu_worker"})));
}

TEST(OtherRanksTest, OneThatEndsAtOnceIsNamed) {
  const absl::Status status = MeetProcess({"/bin/sh", "-c", "exit 1"});
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1"));
}

// Each gets its number as the last argument.
TEST(OtherRanksTest, OneThatSaysSomethingElseIsNamed) {
  const absl::Status status = MeetProcess({"/bin/sh", "-c", "echo $0 and more words >&3; cat"});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1: "));
}

TEST(OtherRanksTest, AHelloSaysWhatTheProcessHas) {
  ServedEngineOptions options;
  options.num_threads = 1;
  options.rank = 2;
  options.num_ranks = 4;
  const ComputeBackend backend = CreateCpuBackend(options).value();
  const RankHello hello =
      HelloOf(options, backend, "name", {.available_bytes = 9, .weight_bytes = 8});
  EXPECT_EQ(hello.rank, 2u);
  EXPECT_EQ(hello.num_ranks, 4u);
  EXPECT_EQ(hello.fingerprint, "name");
  EXPECT_EQ(hello.backend, "cpu");
  EXPECT_FALSE(hello.version.empty());
  EXPECT_EQ(hello.available_bytes, 9u);
  EXPECT_EQ(hello.weight_bytes, 8u);
}

}  // namespace
}  // namespace retroinfer
