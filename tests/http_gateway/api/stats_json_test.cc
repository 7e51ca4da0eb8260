#include "http_gateway/api/stats_json.h"

#include <gtest/gtest.h>

#include "http_gateway/json/strict_json.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

TEST(StatsJson, TellsTheLimitsAndTheCounters) {
  v1::GetModelInfoResponse info;
  info.set_model_name("a \"name\"");
  info.set_max_model_len(131072);
  info.set_default_max_tokens(1024);
  info.mutable_default_attention()->set_policy(v1::ATTENTION_POLICY_FULL);
  v1::WorkerStats& stats = *info.mutable_stats();
  stats.set_requests_running(2);
  stats.set_page_hits_total(9);
  stats.set_page_misses_total(1);
  stats.set_generation_tokens_total(77);
  stats.mutable_uptime()->set_seconds(5);
  const auto json = ParseStrictJson(StatsJson(info));
  ASSERT_TRUE(json.ok()) << json.status();
  EXPECT_EQ((*json)["model"], "a \"name\"");
  EXPECT_EQ((*json)["max_model_len"], 131072);
  EXPECT_EQ((*json)["default_policy"], "full");
  EXPECT_EQ((*json)["requests_running"], 2);
  EXPECT_EQ((*json)["page_hits_total"], 9);
  EXPECT_EQ((*json)["page_misses_total"], 1);
  EXPECT_EQ((*json)["page_transients_total"], 0);
  EXPECT_EQ((*json)["generation_tokens_total"], 77);
  EXPECT_EQ((*json)["uptime_seconds"], 5);
}

}  // namespace
}  // namespace retroinfer::gateway
