#include "gpu_worker/server/rank_metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

namespace retroinfer {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Answers one command with these statistics.
void AnswerOne(RankChannel& rank, const RankStats& stats) {
  ASSERT_EQ(rank.Receive(absl::Minutes(1)).value().type, RankMessageType::kCommand);
  RankAnswer answer;
  answer.stats = stats;
  ASSERT_TRUE(rank.Send(RankMessageType::kAnswer, EncodeAnswer(answer), absl::Minutes(1)).ok());
}

TEST(RankMetricsTest, TellsWhatRanksHaveSaidLast) {
  common::Metrics metrics("gpu_worker", "1", "r", "cpu");
  auto ends = RankChannel::MakePair().value();
  RankChannel near(std::move(ends.first)), far(std::move(ends.second));
  const auto group = RankGroup::Start(
      {&near}, {.limits = {.vocab_size = 10, .max_model_len = 10},
                .on_written = [](int, const WrittenSegment&) { return absl::OkStatus(); },
                .on_lost = [](int, const absl::Status& status) { ADD_FAILURE() << status; }});
  ASSERT_TRUE(group.ok()) << group.status();
  const CommandHooks hooks = (*group)->Hooks();
  const auto command = [&](const RankStats& stats) {
    hooks.on_command({});
    AnswerOne(far, stats);
    CommandResult result;
    hooks.on_result(result);
    EXPECT_TRUE(result.step.ok());
  };
  const RankMetrics exported(**group, metrics);
  command({.page_hits = 5, .slots_used = 3, .device_bytes = 4096});
  EXPECT_THAT(metrics.Render(),
              AllOf(HasSubstr("retroinfer_rank_page_hits_total{rank=\"1\"} 5"),
                    HasSubstr("retroinfer_rank_slots_used{rank=\"1\"} 3"),
                    HasSubstr("retroinfer_rank_device_memory_bytes{rank=\"1\"} 4096"),
                    HasSubstr("retroinfer_rank_wait_seconds_total{rank=\"1\"}")));
  command({.page_hits = 9, .page_misses = 1, .slots_used = 2, .device_bytes = 4096});
  EXPECT_THAT(metrics.Render(), AllOf(HasSubstr("retroinfer_rank_page_hits_total{rank=\"1\"} 9"),
                                      HasSubstr("retroinfer_rank_page_misses_total{rank=\"1\"} 1"),
                                      HasSubstr("retroinfer_rank_slots_used{rank=\"1\"} 2")));
}

}  // namespace
}  // namespace retroinfer
