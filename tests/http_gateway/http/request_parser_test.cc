#include "http_gateway/http/request_parser.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/status/error_reason.h"

namespace retroinfer::gateway {
namespace {

constexpr RequestParser::Limits kLimits = {.head_bytes_max = 1024, .body_bytes_max = 100};

// Feeds `bytes`, `step` of them at a time, and returns the requests that come out.
absl::StatusOr<std::vector<HttpRequest>> Parse(const std::string& bytes, size_t step) {
  RequestParser parser(kLimits);
  std::vector<HttpRequest> requests;
  std::string input;
  for (size_t i = 0; i < bytes.size(); i += step) {
    input.append(bytes, i, step);
    while (true) {
      const absl::StatusOr<size_t> used = parser.Put(input);
      if (!used.ok()) return used.status();
      input.erase(0, *used);
      if (parser.done()) {
        requests.push_back(parser.Take());
      } else if (*used == 0) {
        break;
      }
    }
  }
  return requests;
}

// The same however the bytes are cut.
std::vector<HttpRequest> ParseAll(const std::string& bytes, size_t expected) {
  std::vector<HttpRequest> last;
  for (const size_t step : {bytes.size(), size_t{1}, size_t{7}}) {
    const auto requests = Parse(bytes, step);
    EXPECT_TRUE(requests.ok()) << requests.status() << "\n" << bytes;
    if (!requests.ok()) return std::vector<HttpRequest>(expected);
    EXPECT_EQ(requests->size(), expected) << "by " << step << "\n" << bytes;
    last = *requests;
  }
  last.resize(expected);
  return last;
}

// Also where the first bytes end anywhere.
std::string ReasonOf(const std::string& bytes) {
  std::string reason;
  for (size_t step = 1; step <= bytes.size(); step += 1 + step / 64) {
    const auto requests = Parse(bytes, step);
    EXPECT_FALSE(requests.ok()) << bytes;
    if (!requests.ok()) reason = common::ReasonOf(requests.status()).reason;
  }
  return reason;
}

TEST(RequestParser, ReadsARequest) {
  const auto requests = ParseAll(
      "POST /v1/x?a=b HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer k\r\ncontent-type: "
      "application/json\r\nX-Request-Id: 7\r\nOrigin: o\r\nContent-Length: 4\r\n\r\nabcd",
      1);
  EXPECT_EQ(requests[0].method, "POST");
  EXPECT_EQ(requests[0].path, "/v1/x");
  EXPECT_EQ(requests[0].query, "a=b");
  EXPECT_EQ(requests[0].authorization, "Bearer k");
  EXPECT_EQ(requests[0].content_type, "application/json");
  EXPECT_EQ(requests[0].request_id, "7");
  EXPECT_EQ(requests[0].origin, "o");
  EXPECT_EQ(requests[0].body, "abcd");
  EXPECT_TRUE(requests[0].keep_alive && requests[0].is_http11 && requests[0].has_body);
}

TEST(RequestParser, ReadsPipelinedRequests) {
  const auto requests = ParseAll(
      "GET /a HTTP/1.1\r\nHost: h\r\n\r\n"
      "\r\nPOST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nxy"
      "POST /c HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
      "GET http://h/d HTTP/1.0\r\n\r\n",
      4);
  EXPECT_EQ(requests[1].body, "xy");
  EXPECT_EQ(requests[2].body, "abcde");
  EXPECT_EQ(requests[3].path, "/d");
  EXPECT_FALSE(requests[3].keep_alive || requests[3].is_http11);
}

TEST(RequestParser, ReadsConnectionAndExpect) {
  const auto requests = ParseAll(
      "GET /a HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n"
      "GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"
      "POST /a HTTP/1.1\r\nHost: h\r\nExpect: 100-Continue\r\nContent-Length: 0\r\n\r\n",
      3);
  EXPECT_FALSE(requests[0].keep_alive);
  EXPECT_TRUE(requests[1].keep_alive);
  EXPECT_TRUE(requests[2].expects_continue);
}

TEST(RequestParser, RefusesLengthsOfTwoMeanings) {
  const std::string head = "POST /a HTTP/1.1\r\nHost: h\r\n";
  for (const char* headers : {"Content-Length: 3\r\nContent-Length: 3\r\n",
                              "Content-Length: 3\r\nContent-Length: 4\r\n",
                              "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n",
                              "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n",
                              "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
                              "Transfer-Encoding: identity\r\n",
                              "Transfer-Encoding: gzip, chunked\r\n",
                              "Transfer-Encoding: chunked, identity\r\n",
                              "Transfer-Encoding: xchunked\r\n",
                              "Transfer-Encoding : chunked\r\n",
                              "Transfer-Encoding:\x0b"
                              "chunked\r\n",
                              "Content-Length: -1\r\n",
                              "Content-Length: +3\r\n",
                              "Content-Length: 3,3\r\n",
                              "Content-Length: 0x3\r\n",
                              "Content-Length: 99999999999999999999\r\n",
                              "X: a\r\n Content-Length: 3\r\n",
                              "Transfer-Encoding:\r\n chunked\r\nY: a\r\n",
                              "X: a\r\n\tb\r\n",
                              "X\r\n",
                              ": x\r\n",
                              "X: a\x01\r\n",
                              "X: a\nContent-Length: 3\r\n",
                              "Host: other\r\n",
                              "X: a\rb\r\n"}) {
    EXPECT_EQ(ReasonOf(head + headers + "\r\nabc"), "BAD_REQUEST") << headers;
  }
  EXPECT_EQ(ReasonOf("POST /a HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
            "BAD_REQUEST");
}

TEST(RequestParser, RefusesWhatIsNoRequest) {
  for (const char* bytes :
       {"GET /a HTTP/1.1\r\n\r\n", "GET /a HTTP/2.0\r\nHost: h\r\n\r\n",
        "GET /a HTTP/0.9\r\nHost: h\r\n\r\n", "GET /a\r\n\r\n",
        "GET  /a HTTP/1.1\r\nHost: h\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "\x16\x03\x01\x02\x01\r\n\r\n", "GET a HTTP/1.1\r\nHost: h\r\n\r\n",
        "GET /a\x01 HTTP/1.1\r\nHost: h\r\n\r\n"}) {
    EXPECT_EQ(ReasonOf(bytes), "BAD_REQUEST") << bytes;
  }
}

// Beast waits for eight bytes of a version.
TEST(RequestParser, RefusesAHeadThatEndsInItsFirstLine) {
  for (const char* head : {"POST / b\r\n\r\n", "G\r\n\r\n", "GET \r\n\r\n", "GET /\r\n\r\n",
                           "GET / \r\n\r\n", "GET / HTTP\r\n\r\n", "GET / HTTP/1\r\n\r\n"}) {
    EXPECT_EQ(ReasonOf(std::string(head) + std::string(3000, 'x')), "BAD_REQUEST") << head;
    EXPECT_EQ(ReasonOf(head), "BAD_REQUEST") << head;
  }
}

TEST(RequestParser, NoBadChunkMakesARequest) {
  const std::string head = "POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const char* body :
       {"x\r\n", "-1\r\n", "3\r\nabcd\r\n0\r\n\r\n", "3\nabc\n", "3 \r\nabc\r\n0\r\n\r\n",
        "3;\nGET / HTTP/1.1\r\nabc\r\n0\r\n\r\n", "3;a=\"\r\n\"\r\nabc\r\n0\r\n\r\n",
        "ffffffffffffffffff\r\n", "0x3\r\nabc\r\n", "0x3\r\n\r\n", "0 \r\n\r\n", "0\n\n",
        ";x\r\n\r\n", "3\r\nabc0\r\n\r\n"}) {
    for (const size_t step : {size_t{1000}, size_t{1}}) {
      const auto requests = Parse(head + body + "\r\n\r\n", step);
      EXPECT_TRUE(!requests.ok() || requests->empty()) << body;
    }
  }
}

// They belong to nothing, and what comes behind them is a request of its own.
// Beast waits for the other quote, and by its limit of the body for 14 bytes at most.
TEST(RequestParser, AnExtensionOfAChunkEndsWithItsLine) {
  const std::string head = "POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const char* chunks :
       {"7;x=\"b\r\nabcdefg\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        "3\r\nabc\r\n7;x=\"b\r\nabcdefg\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n",
        "7;x=\"b\r\nabcdef\"\r\n0\r\n\r\n", "7;x=\"b\\\"\r\nabcdefg\r\n0\r\n\r\n",
        "0;x=\"b\r\n\r\nGET / HTTP/1.1\r\nHost: h\r\n\r\n", "00;x=\"b\r\nT: x\r\n\r\n",
        "3\r\nabc\r\n0;x=\"b\r\nT: x\r\n\r\n"}) {
    EXPECT_EQ(ReasonOf(head + chunks), "BAD_REQUEST") << chunks;
  }
  for (const char* chunks : {"3;x=\"a;0\\\"b\"\r\nabc\r\n2;y ; z=\"\"\r\nde\r\n0;x=\"y\"\r\n\r\n",
                             "05;x\r\nabcde\r\n000;x=y\r\nT: \"x\r\n\r\n"}) {
    EXPECT_EQ(ParseAll(head + chunks, 1)[0].body, "abcde") << chunks;
  }
}

TEST(RequestParser, TrailersChangeNoRequest) {
  const std::string head = "POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  const auto requests =
      ParseAll(head + "3\r\nabc\r\n0\r\nAuthorization: Bearer k\r\nX-Request-Id: 7\r\n\r\n" +
                   "GET /b HTTP/1.1\r\nHost: h\r\n\r\n",
               2);
  EXPECT_EQ(requests[0].body, "abc");
  EXPECT_EQ(requests[0].authorization, "");
  EXPECT_EQ(requests[0].request_id, "");
  EXPECT_EQ(requests[1].path, "/b");
  for (const char* trailer : {"Content-Length: 5\r\n", "Transfer-Encoding: chunked\r\n"}) {
    for (const size_t step : {size_t{1000}, size_t{1}}) {
      const auto framed = Parse(head + "0\r\n" + trailer + "\r\nGET /b", step);
      EXPECT_TRUE(!framed.ok() || framed->size() == 1) << trailer;
      if (framed.ok()) {
        EXPECT_EQ(framed->front().body, "");
      }
    }
  }
  EXPECT_EQ(ReasonOf(head + "0\r\n" + std::string(2000, 'x')), "HEADERS_TOO_LARGE");
}

// Pieces of three and four bytes end within the last chunk, which has five.
TEST(RequestParser, TheLastChunkMayComeInPieces) {
  const std::string head = "POST /a HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  for (const std::string body : {"", "a", "abcde"}) {
    const std::string chunk =
        body.empty() ? "" : std::to_string(body.size()) + "\r\n" + body + "\r\n";
    for (size_t step = 1; step < 8; ++step) {
      const auto requests = Parse(head + chunk + "0\r\n\r\n", step);
      ASSERT_TRUE(requests.ok()) << requests.status();
      ASSERT_EQ(requests->size(), 1U) << step;
      EXPECT_EQ(requests->front().body, body);
    }
  }
}

TEST(RequestParser, BoundsTheHeadAndTheBody) {
  EXPECT_EQ(ReasonOf("GET /" + std::string(2000, 'a') + " HTTP/1.1\r\nHost: h\r\n\r\n"),
            "HEADERS_TOO_LARGE");
  EXPECT_EQ(ReasonOf("GET / HTTP/1.1\r\nHost: h\r\nX: " + std::string(2000, 'a')),
            "HEADERS_TOO_LARGE");
  EXPECT_EQ(ReasonOf("POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 101\r\n\r\n"),
            "BODY_TOO_LARGE");
  const std::string chunked = "POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(ReasonOf(chunked + "ff\r\n" + std::string(255, 'a')), "BODY_TOO_LARGE");
  EXPECT_EQ(ReasonOf(chunked + "3;" + std::string(3000, 'x')), "HEADERS_TOO_LARGE");
}

TEST(RequestParser, KnowsHowFarItIs) {
  RequestParser parser(kLimits);
  EXPECT_EQ(*parser.Put("\r\n\r\n"), 4U);
  EXPECT_FALSE(parser.has_begun());
  const std::string head = "POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n";
  EXPECT_EQ(*parser.Put(head + "ab"), head.size());
  EXPECT_TRUE(parser.has_begun() && parser.head_done());
  EXPECT_FALSE(parser.done());
  EXPECT_EQ(*parser.Put("ab"), 2U);
  EXPECT_EQ(parser.body_bytes(), 2U);
  EXPECT_EQ(*parser.Put("cdeGET"), 3U);
  EXPECT_TRUE(parser.done());
}

}  // namespace
}  // namespace retroinfer::gateway
