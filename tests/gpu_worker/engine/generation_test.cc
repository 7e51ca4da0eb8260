#include "gpu_worker/engine/generation.h"

#include <gtest/gtest.h>

namespace retroinfer {
namespace {

TEST(FinishReasonName, IsTheMetricLabelOfEachReason) {
  EXPECT_EQ(FinishReasonName(FinishReason::kStop), "stop");
  EXPECT_EQ(FinishReasonName(FinishReason::kLength), "length");
  EXPECT_EQ(FinishReasonName(FinishReason::kCancelled), "cancelled");
  EXPECT_EQ(FinishReasonName(FinishReason::kDeadline), "deadline");
  EXPECT_EQ(FinishReasonName(FinishReason::kError), "error");
}

}  // namespace
}  // namespace retroinfer
