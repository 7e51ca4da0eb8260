#include "gpu_worker/measuring/synthetic/recorded_reuse.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

namespace retroinfer {
namespace {

TEST(RecordedReuseTest, EveryTracesStatisticsAreShares) {
  ASSERT_EQ(RecordedReuses().size(), 4u);
  for (const RecordedReuse& reuse : RecordedReuses()) {
    SCOPED_TRACE(reuse.trace);
    EXPECT_EQ(reuse.num_layers * reuse.num_kv_heads, reuse.heads.size());
    for (const HeadReuse& head : reuse.heads) {
      EXPECT_NEAR(std::accumulate(head.at_depth.begin(), head.at_depth.end(), 0), 10'000, 15);
    }
    EXPECT_GT(reuse.first.front(), 9'500) << "nothing was read before the first step";
    EXPECT_LT(reuse.first.back(), 200);
    for (size_t i = 0; i + 1 < reuse.lru_hits.size(); ++i) {
      EXPECT_LT(reuse.lru_hits[i], reuse.lru_hits[i + 1]);
    }
  }
}

TEST(RecordedReuseTest, ContextsGoByTheNearestTraceOfTheirModel) {
  const auto trace_for = [](RecordedModel model, int64_t tokens) {
    return std::string(ReuseFor(model, tokens).trace);
  };
  EXPECT_EQ(trace_for(RecordedModel::kCode, 1), "code-32768");
  EXPECT_EQ(trace_for(RecordedModel::kCode, 50'000), "code-32768");
  EXPECT_EQ(trace_for(RecordedModel::kCode, 80'000), "code-131072");
  EXPECT_EQ(trace_for(RecordedModel::kCode, 1 << 20), "code-131072");
  EXPECT_EQ(trace_for(RecordedModel::kNeedle, 1), "needle-32768");
  EXPECT_EQ(trace_for(RecordedModel::kNeedle, 80'000), "needle-131072");
}

}  // namespace
}  // namespace retroinfer
