#include "gpu_worker/assembly/default_sampling.h"

#include <gtest/gtest.h>

namespace retroinfer {
namespace {

TEST(DefaultSamplingTest, WithoutAFileRequestsAreDrawn) {
  const SamplingParams sampling = DefaultSampling({});
  EXPECT_EQ(sampling.temperature, 1.0f);
  EXPECT_EQ(sampling.top_p, 1.0f);
  EXPECT_EQ(sampling.top_k, 0);
  EXPECT_EQ(sampling.repetition_penalty, 1.0f);
}

TEST(DefaultSamplingTest, ATemperatureCountsWithoutDoSample) {
  const GenerationConfig config{
      .temperature = 0.6f, .top_p = 0.9f, .top_k = 20, .min_p = 0.1f, .repetition_penalty = 1.05f};
  const SamplingParams sampling = DefaultSampling(config);
  EXPECT_EQ(sampling.temperature, 0.6f);
  EXPECT_EQ(sampling.top_p, 0.9f);
  EXPECT_EQ(sampling.top_k, 20);
  EXPECT_EQ(sampling.min_p, 0.1f);
  EXPECT_EQ(sampling.repetition_penalty, 1.05f);
  GenerationConfig sampled = config;
  sampled.do_sample = true;
  EXPECT_EQ(DefaultSampling(sampled).temperature, 0.6f);
}

TEST(DefaultSamplingTest, DoSampleFalseIsGreedy) {
  EXPECT_EQ(DefaultSampling({.do_sample = false, .temperature = 0.6f}).temperature, 0.0f);
  EXPECT_EQ(DefaultSampling({.do_sample = false}).temperature, 0.0f);
}

}  // namespace
}  // namespace retroinfer
