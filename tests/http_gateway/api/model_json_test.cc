#include "http_gateway/api/model_json.h"

#include <gtest/gtest.h>

#include "http_gateway/json/strict_json.h"

namespace retroinfer::gateway {
namespace {

TEST(ModelJson, HasWhatClientsOfBothApisRead) {
  const Json list = Json::parse(ModelListJson({"needle", "claude-\"x"}, 86400, 4096));
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["first_id"], "needle");
  EXPECT_EQ(list["last_id"], "claude-\"x");
  EXPECT_EQ(list["has_more"], false);
  ASSERT_EQ(list["data"].size(), 2U);
  const Json model = list["data"][1];
  EXPECT_EQ(model, Json::parse(ModelJson("claude-\"x", 86400, 4096)));
  EXPECT_EQ(model["id"], "claude-\"x");
  EXPECT_EQ(model["object"], "model");
  EXPECT_EQ(model["created"], 86400);
  EXPECT_EQ(model["max_model_len"], 4096);
  EXPECT_EQ(model["type"], "model");
  EXPECT_EQ(model["created_at"], "1970-01-02T00:00:00Z");
}

}  // namespace
}  // namespace retroinfer::gateway
