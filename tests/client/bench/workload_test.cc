#include "client/bench/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <set>

namespace retroinfer::client {
namespace {

using ::testing::HasSubstr;

std::string Wrong(std::string_view text) {
  return std::string(ParseWorkload(text).status().message());
}

TEST(WorkloadTest, ReadsRequestsInTheOrderOfTheirArrival) {
  const auto requests = ParseWorkload(
      "{\"arrival\": 2.5, \"input_len\": 900, \"output_len\": 64, \"prefix\": \"manual\", "
      "\"prefix_len\": 800, \"class\": \"chat\", \"priority\": -3}\n"
      "\n"
      "{\"input_len\": 5, \"output_len\": 1}");
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 2u);
  EXPECT_EQ((*requests)[0].input_len, 5);
  EXPECT_EQ((*requests)[0].request_class, "default");
  const WorkloadRequest& second = (*requests)[1];
  EXPECT_EQ(second.arrival, absl::Seconds(2.5));
  EXPECT_EQ(second.prefix, "manual");
  EXPECT_EQ(second.prefix_len, 800);
  EXPECT_EQ(second.output_len, 64);
  EXPECT_EQ(second.priority, -3);
}

TEST(WorkloadTest, SaysWhichLineIsWrongAndWhy) {
  EXPECT_THAT(Wrong(""), HasSubstr("no request"));
  EXPECT_THAT(Wrong("\n{"), HasSubstr("line 2: is not JSON"));
  EXPECT_THAT(Wrong("[1]"), HasSubstr("line 1: is not a JSON object"));
  EXPECT_THAT(Wrong("{\"input_len\": 5}"), HasSubstr("are needed"));
  EXPECT_THAT(Wrong("{\"input_len\": 0, \"output_len\": 1}"), HasSubstr("input_len is 0"));
  EXPECT_THAT(Wrong("{\"input_len\": 1e3, \"output_len\": 1}"), HasSubstr("whole number"));
  EXPECT_THAT(Wrong("{\"input_len\": 5, \"output_len\": 99999999999}"), HasSubstr("output_len"));
  EXPECT_THAT(Wrong("{\"input_len\": 5, \"output_len\": 1, \"priority\": 18446744073709551615}"),
              HasSubstr("priority is 18446744073709551615"));
  EXPECT_THAT(Wrong("{\"input_len\": 5, \"output_len\": 1, \"arrival\": -1}"),
              HasSubstr("arrival"));
  EXPECT_THAT(Wrong("{\"input_len\": 5, \"output_len\": 1, \"tenent\": 1}"),
              HasSubstr("unknown field tenent"));
  EXPECT_THAT(Wrong("{\"input_len\": 5, \"output_len\": 1, \"prefix_len\": 6, \"prefix\": \"a\"}"),
              HasSubstr("longer"));
  EXPECT_THAT(Wrong("{\"input_len\": 5, \"output_len\": 1, \"prefix_len\": 3}"),
              HasSubstr("go together"));
  std::string much;
  for (int i = 0; i < 33; ++i) much += "{\"input_len\": 16777216, \"output_len\": 1}\n";
  EXPECT_THAT(Wrong(much), HasSubstr("line 33"));
}

TEST(WorkloadTest, MixesHaveWhatTheirNamesSayAndFitIntoTheServer) {
  for (const std::string_view name : MixNames()) {
    for (const int64_t longest : {2, 1000, 32768, 1 << 20}) {
      const MixOptions options{
          .num_prompts = 500, .request_rate = 10, .max_request_len = longest, .seed = 3};
      std::map<std::string, int> classes;
      absl::Duration before = absl::ZeroDuration();
      const std::vector<WorkloadRequest> requests = MakeMix(name, options);
      ASSERT_EQ(requests.size(), 500u);
      for (const WorkloadRequest& request : requests) {
        EXPECT_GE(request.input_len, 1);
        EXPECT_GE(request.output_len, 1);
        EXPECT_LE(request.input_len + request.output_len, longest) << name;
        EXPECT_LE(request.prefix_len, request.input_len);
        EXPECT_GE(request.arrival, before);
        before = request.arrival;
        ++classes[request.request_class];
      }
      EXPECT_EQ(classes.size(), name == "mixed" ? 3u : 1u);
      EXPECT_EQ(MakeMix(name, options)[77].input_len, requests[77].input_len);
    }
  }
  const auto at_once = MakeMix("chat", {.num_prompts = 3,
                                        .request_rate = std::numeric_limits<double>::infinity(),
                                        .max_request_len = 4096});
  EXPECT_EQ(at_once.back().arrival, absl::ZeroDuration());
}

TEST(WorkloadTest, PromptsShareWhatTheySayTheyShare) {
  const auto requests = ParseWorkload(
      "{\"input_len\": 50, \"output_len\": 7, \"prefix\": \"a\", \"prefix_len\": 40}\n"
      "{\"input_len\": 30, \"output_len\": 1, \"prefix\": \"a\", \"prefix_len\": 20}\n"
      "{\"input_len\": 30, \"output_len\": 1, \"prefix\": \"b\", \"prefix_len\": 20}\n"
      "{\"input_len\": 30, \"output_len\": 1, \"class\": \"x\", \"priority\": 2}\n");
  ASSERT_TRUE(requests.ok());
  const int32_t excluded[] = {3};
  const std::vector<PlannedRequest> plan = PlanWorkload(*requests, 1000, excluded, 5);
  const auto begins_alike = [&](size_t a, size_t b, int length) {
    return std::equal(plan[a].token_ids.begin(), plan[a].token_ids.begin() + length,
                      plan[b].token_ids.begin());
  };
  EXPECT_TRUE(begins_alike(0, 1, 20));
  EXPECT_FALSE(begins_alike(0, 1, 21));
  EXPECT_FALSE(begins_alike(0, 2, 2));
  EXPECT_EQ(plan[0].token_ids.size(), 50u);
  EXPECT_EQ(plan[0].output_len, 7);
  EXPECT_EQ(plan[3].request_class, "x");
  EXPECT_EQ(plan[3].priority, 2);
  for (const PlannedRequest& request : plan) {
    for (const int32_t token : request.token_ids) EXPECT_NE(token, 3);
  }
  EXPECT_EQ(PlanWorkload(*requests, 1000, excluded, 5)[2].token_ids, plan[2].token_ids);
  EXPECT_NE(PlanWorkload(*requests, 1000, excluded, 6)[3].token_ids, plan[3].token_ids);
}

}  // namespace
}  // namespace retroinfer::client
