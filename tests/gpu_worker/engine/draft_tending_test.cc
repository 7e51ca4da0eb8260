#include "gpu_worker/engine/draft_tending.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "gpu_worker/ops/model/sampling.h"

namespace retroinfer {
namespace {

// A request that decodes behind a prompt that says the same again and again.
class Repeating {
 public:
  explicit Repeating(LiveRequests& all, int64_t prompt_tokens,
                     RequestPhase phase = RequestPhase::kDecoding) {
    for (int64_t i = 0; i < prompt_tokens; ++i) prompt_.push_back(static_cast<int32_t>(i % 70));
    live_ = all.emplace_back(std::make_unique<LiveRequest>()).get();
    live_->phase = phase;
    live_->first_token = absl::UnixEpoch();
    live_->drafting.emplace(prompt_);
  }
  LiveRequest& live() { return *live_; }

 private:
  std::vector<int32_t> prompt_;
  LiveRequest* live_;
};

TEST(DraftTendingTest, ALongPromptIsIndexedOverSeveralRounds) {
  LiveRequests all;
  Repeating long_one(all, 50000), short_one(all, 200), waiting(all, 200, RequestPhase::kReading);
  all.push_back(std::make_unique<LiveRequest>());  // without drafts
  all.back()->phase = RequestPhase::kDecoding;
  int rounds = 0;
  while (long_one.live().drafting->draft().empty()) {
    ASSERT_LT(++rounds, 20);
    TendDrafts(all);
  }
  EXPECT_GT(rounds, 3);
  EXPECT_EQ(std::ssize(long_one.live().drafting->draft()), kMaxSamplingAhead);
  EXPECT_EQ(long_one.live().drafting->draft()[0], 50000 % 70);
  TendDrafts(all);
  EXPECT_EQ(short_one.live().drafting->draft()[0], 200 % 70);
  EXPECT_TRUE(waiting.live().drafting->draft().empty());
}

}  // namespace
}  // namespace retroinfer
