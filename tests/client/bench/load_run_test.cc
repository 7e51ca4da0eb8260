#include "client/bench/load_run.h"

#include <gtest/gtest.h>

#include <limits>

#include "tests/support/worker_harness.h"

namespace retroinfer::client {
namespace {

class LoadRunTest : public ::testing::Test {
 protected:
  LoadRun Run(int32_t max_concurrency) {
    const auto connection = Connection::Open({.address = worker_.address()});
    EXPECT_TRUE(connection.ok());
    LoadRunOptions options{.max_concurrency = max_concurrency,
                           .on_progress = [this](int64_t done) { progress_.push_back(done); }};
    options.request.mutable_sampling()->set_max_tokens(20);
    const auto plan = PlanLoad({.num_prompts = 6,
                                .input_len = 5,
                                .request_rate = std::numeric_limits<double>::infinity(),
                                .vocab_size = 200});
    options.should_stop = should_stop_;
    return RunLoad(**connection, plan, options);
  }

  WorkerHarness worker_{
      WorkerHarness::Settings{.engine = {.vocab_size = 300, .step_time = absl::Milliseconds(2)}}};
  std::vector<int64_t> progress_;
  std::function<bool()> should_stop_;
};

TEST_F(LoadRunTest, NotesTheTimesOfEveryRequest) {
  const LoadRun run = Run(6);
  EXPECT_FALSE(run.interrupted);
  EXPECT_EQ(progress_, (std::vector<int64_t>{1, 2, 3, 4, 5, 6}));
  for (const RequestRecord& record : run.records) {
    EXPECT_TRUE(record.sent);
    EXPECT_EQ(record.error, "");
    EXPECT_EQ(record.prompt_tokens, 5);
    EXPECT_EQ(record.completion_tokens, 20);
    EXPECT_GT(record.first_token, absl::ZeroDuration());
    EXPECT_FALSE(record.gaps.empty());
    EXPECT_GE(record.end, 20 * absl::Milliseconds(2));
    EXPECT_LE(record.end, run.duration);
  }
}

TEST_F(LoadRunTest, KeepsToTheConcurrency) {
  const LoadRun run = Run(1);
  absl::Duration one_after_the_other;
  for (const RequestRecord& record : run.records) one_after_the_other += record.end;
  EXPECT_LE(one_after_the_other, run.duration);
}

TEST_F(LoadRunTest, StopsWhenAsked) {
  should_stop_ = [asked = 0]() mutable { return ++asked == 2; };
  const LoadRun run = Run(1);
  EXPECT_TRUE(run.interrupted);
  EXPECT_TRUE(run.records.front().sent);
  EXPECT_FALSE(run.records.back().sent);
}

}  // namespace
}  // namespace retroinfer::client
