#include "http_gateway/server/cors.h"

#include <gtest/gtest.h>

namespace retroinfer::gateway {
namespace {

std::string AllowedTo(const std::string& requested) {
  HttpHeaders headers;
  AddCorsHeaders({"https://a"},
                 {.method = "OPTIONS", .origin = "https://a", .requested_headers = requested},
                 &headers);
  for (const auto& [name, value] : headers) {
    if (name == "Access-Control-Allow-Headers") return value;
  }
  return "";
}

TEST(Cors, APreflightIsAllowedWhatItAsksFor) {
  EXPECT_EQ(AllowedTo("x-stainless-os,anthropic-version, x-api-key"),
            "x-stainless-os,anthropic-version, x-api-key");
  const std::string usual = AllowedTo("");
  EXPECT_NE(usual.find("X-Api-Key"), std::string::npos);
  for (const std::string& bad : {std::string("a b"), std::string("a,,b"), std::string("a\r\nb: c"),
                                 std::string(2000, 'a'), std::string("a, ")}) {
    EXPECT_EQ(AllowedTo(bad), usual) << bad;
  }
  EXPECT_TRUE(IsHeaderNameList(" a , b\t"));
}

TEST(Cors, StrangersGetNothing) {
  HttpHeaders headers;
  AddCorsHeaders({}, {.origin = "https://a"}, &headers);
  EXPECT_TRUE(headers.empty());
  AddCorsHeaders({"https://a"}, {.origin = "https://b"}, &headers);
  ASSERT_EQ(headers.size(), 1U);
  EXPECT_EQ(headers[0].first, "Vary");
}

}  // namespace
}  // namespace retroinfer::gateway
