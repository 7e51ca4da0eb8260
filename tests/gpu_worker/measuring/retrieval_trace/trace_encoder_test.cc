#include "gpu_worker/measuring/retrieval_trace/trace_encoder.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/support/decoded_trace.h"

namespace retroinfer {
namespace {

StepRetrieval Step(uint64_t tokens, std::vector<RetrievedCluster> clusters,
                   uint32_t num_left_out = 0) {
  return {.sequence_id = 7,
          .num_tokens = tokens,
          .num_clusters = 256,
          .heads = {{.clusters = std::move(clusters), .num_left_out = num_left_out}}};
}

TEST(TraceEncoderTest, TheBytesAreThoseOfTheFormat) {
  TraceEncoder encoder({.num_layers = 1, .num_kv_heads = 1, .tokens_per_page = 4});
  EXPECT_EQ(encoder.Header(), std::string("RITRACE1\x01\x01\x04\x40", 12));
  // Length; letter, id, 300 tokens, 256 places; no bits, 2 new: 3 and 200; their pages; no miss.
  EXPECT_EQ(encoder.Step(Step(300, {{3, 5, 0}, {200, 4, 0}})), std::string("\x0d"
                                                                           "S\x07\xac\x02\x80\x02"
                                                                           "\x04\x03\xc4\x01"
                                                                           "\x05\x04"
                                                                           "\x00",
                                                                           14));
  // 200 again, of {3, 200}: bits 10. New: 9, with 6 pages, of which 2 missed; it comes first.
  EXPECT_EQ(encoder.Step(Step(301, {{9, 6, 2}, {200, 4, 0}})), std::string("\x0d"
                                                                           "S\x07\xad\x02\x80\x02"
                                                                           "\x02"
                                                                           "\x02\x09"
                                                                           "\x06"
                                                                           "\x01\x00\x02",
                                                                           14));
  // 9 and 200 again, and 3, whose pages are known; four more are left out.
  EXPECT_EQ(encoder.Step(Step(302, {{3, 5, 0}, {9, 6, 0}, {200, 4, 0}}, 4)),
            std::string("\x0b"
                        "S\x07\xae\x02\x80\x02"
                        "\x03"
                        "\x03\x04\x03"
                        "\x00",
                        12));
  EXPECT_EQ(encoder.Release(7), std::string("\x02R\x07", 3));
  EXPECT_EQ(encoder.Release(7), "") << "nobody has heard of it";
  EXPECT_EQ(TraceEncoder::Lost(130), std::string("\x03L\x82\x01", 4));
  EXPECT_EQ(TraceEncoder::EndOf(TraceEncoder::End::kLimit), std::string("\x02"
                                                                        "E\x01",
                                                                        3));
}

TEST(TraceEncoderTest, WhatIsReadBackIsWhatWasWritten) {
  constexpr uint32_t kClusters = 640, kHeads = 6;
  std::mt19937 random(5);
  TraceEncoder encoder({.num_layers = 3, .num_kv_heads = 2, .tokens_per_page = 4});
  std::string bytes = encoder.Header();
  std::vector<StepRetrieval> steps;
  for (uint64_t i = 0; i < 60; ++i) {
    StepRetrieval step{
        .sequence_id = i % 3, .num_tokens = i, .num_clusters = kClusters, .heads = {}};
    for (uint32_t head = 0; head < kHeads; ++head) {
      std::set<uint32_t> clusters;
      while (clusters.size() < random() % 40) clusters.insert(random() % kClusters);
      HeadRetrieval& retrieved = step.heads.emplace_back();
      for (const uint32_t cluster : clusters) {
        const uint32_t pages = 1 + cluster * 7 % 300;
        retrieved.clusters.push_back({cluster, pages, random() % 4 == 0 ? pages / 2 : 0});
      }
    }
    bytes += encoder.Step(step);
    steps.push_back(std::move(step));
    if (i == 57) bytes += encoder.Release(0);
  }
  const test_support::DecodedTrace trace(bytes);
  EXPECT_EQ(trace.released, std::vector<uint64_t>{0});
  ASSERT_EQ(trace.steps.size(), steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(trace.steps[i].num_tokens, steps[i].num_tokens);
    for (uint32_t head = 0; head < kHeads; ++head) {
      const auto& got = trace.steps[i].heads[head].clusters;
      const auto& want = steps[i].heads[head].clusters;
      ASSERT_EQ(got.size(), want.size());
      for (size_t j = 0; j < got.size(); ++j) {
        EXPECT_EQ(got[j].cluster, want[j].cluster);
        EXPECT_EQ(got[j].num_pages, want[j].num_pages);
        EXPECT_EQ(got[j].num_missed, want[j].num_missed);
      }
    }
  }
}

}  // namespace
}  // namespace retroinfer
