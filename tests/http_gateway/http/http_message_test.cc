#include "http_gateway/http/http_message.h"

#include <gtest/gtest.h>

namespace retroinfer::gateway {
namespace {

TEST(HttpMessage, HeadsSayHowLongTheBodyIs) {
  EXPECT_EQ(FormatHead(404, "application/json", {{"X-A", "b"}}, 12, true, true),
            "HTTP/1.1 404 Not Found\r\nContent-Type: application/json\r\nContent-Length: 12\r\n"
            "Connection: keep-alive\r\nX-A: b\r\n\r\n");
  EXPECT_NE(FormatHead(200, "t", {}, -1, true, true).find("Transfer-Encoding: chunked\r\n"),
            std::string::npos);
  for (const int status : {204, 304}) {
    const std::string bare = FormatHead(status, "t", {{"ETag", "x"}}, 0, true, true);
    EXPECT_EQ(bare.find("Content-"), std::string::npos) << bare;
    EXPECT_NE(bare.find("Connection: keep-alive\r\nETag: x\r\n\r\n"), std::string::npos) << bare;
  }
  const std::string old = FormatHead(200, "t", {}, -1, false, true);
  EXPECT_EQ(old.find("Transfer-Encoding"), std::string::npos);
  EXPECT_NE(old.find("Connection: close\r\n"), std::string::npos);
  for (const int status : {200, 204, 304, 400, 401, 404, 405, 408, 409, 411, 413, 415, 429, 431,
                           500, 501, 502, 503, 504}) {
    EXPECT_NE(ReasonPhrase(status), "<unknown-status>") << status;
  }
}

TEST(HttpMessage, Chunks) {
  std::string body = "before";
  AppendChunk("0123456789abcdef", &body);
  AppendChunk("", &body);
  EXPECT_EQ(body, "before10\r\n0123456789abcdef\r\n0\r\n\r\n");
}

}  // namespace
}  // namespace retroinfer::gateway
