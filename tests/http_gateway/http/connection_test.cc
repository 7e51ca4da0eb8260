#include "http_gateway/http/connection.h"

#include <gtest/gtest.h>

#include "tests/http_gateway/http_client.h"
#include "tests/http_gateway/http_harness.h"

namespace retroinfer::gateway {
namespace {

using test_support::HttpAnswer;
using test_support::HttpClient;

// Limits that are over soon.
HttpServerOptions Hasty() {
  HttpServerOptions options;
  options.limits.head_timeout = absl::Milliseconds(200);
  options.limits.idle_timeout = absl::Milliseconds(400);
  options.limits.body_timeout = absl::Milliseconds(200);
  options.limits.send_timeout = absl::Milliseconds(200);
  options.limits.linger_timeout = absl::Milliseconds(200);
  return options;
}

TEST(Connection, AnswersRequestAfterRequest) {
  HttpHarness harness;
  HttpClient client(harness.port());
  for (const char* body : {"one", "two", ""}) {
    ASSERT_TRUE(client.Post("/echo", body));
    const HttpAnswer answer = client.Read();
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body, body);
  }
}

TEST(Connection, AnswersPipelinedRequestsInTheirOrder) {
  HttpHarness harness;
  HttpClient client(harness.port());
  std::string requests;
  for (int i = 0; i < 2000; ++i) {
    const std::string body = std::to_string(i);
    requests += "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: " + std::to_string(body.size()) +
                "\r\n\r\n" + body;
  }
  std::thread sender([&] { EXPECT_TRUE(client.Send(requests)); });
  for (int i = 0; i < 2000; ++i) ASSERT_EQ(client.Read().body, std::to_string(i));
  sender.join();
}

// A token costs a system call, however many pieces it is written in.
TEST(Connection, SendsWhatIsWrittenTogetherInOnePiece) {
  HttpHarness harness;
  for (int i = 0; i < 20; ++i) {
    HttpClient client(harness.port());
    client.Get("/stream");  // its handler writes a head, and then a chunk
    ASSERT_TRUE(client.Receive());
    EXPECT_NE(client.input().find("\r\n\r\n5\r\nbegun\r\n"), std::string::npos) << client.input();
  }
}

TEST(Connection, ClosesWhenItIsAskedTo) {
  HttpHarness harness;
  HttpClient client(harness.port());
  client.Get("/echo", "Connection: close\r\n");
  EXPECT_EQ(client.Read().headers["connection"], "close");
  EXPECT_TRUE(client.AwaitEnd());
  HttpClient old(harness.port());
  old.Send("GET /stream HTTP/1.0\r\n\r\n");
  const HttpAnswer head = old.ReadHead();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers.count("transfer-encoding"), 0U);
}

TEST(Connection, SaysContinueWhenAClientWaitsForIt) {
  HttpHarness harness;
  HttpClient client(harness.port());
  client.Send(
      "POST /echo HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n");
  EXPECT_EQ(client.ReadHead().status, 100);
  client.Send("abc");
  EXPECT_EQ(client.Read().body, "abc");
}

TEST(Connection, AnswersHeadWithoutTheBody) {
  HttpHarness harness;
  HttpClient client(harness.port());
  const std::string body = "abc";
  client.Send(absl::StrCat("HEAD /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 3\r\n\r\n", body));
  HttpAnswer head = client.ReadHead();
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.headers["content-length"], "3");
  client.Post("/echo", "next");  // nothing is left in the way of the next answer
  EXPECT_EQ(client.Read().body, "next");
  client.Send("HEAD /refused HTTP/1.1\r\nHost: h\r\n\r\n");
  head = client.ReadHead();
  EXPECT_EQ(head.status, 401);
  EXPECT_NE(head.headers["content-length"], "0");
  EXPECT_EQ(client.ReadUntil("NO"), "");
  // What cannot be read at all has no method, whatever the one before had.
  HttpClient other(harness.port());
  other.Send("HEAD /echo HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(other.ReadHead().status, 200);
  other.Send("nonsense\r\n\r\n");
  EXPECT_NE(other.Read().body, "");
}

TEST(Connection, RefusesByTheHeadBeforeTheBodyComes) {
  HttpHarness harness;
  HttpClient client(harness.port());
  client.Send("POST /refused HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n");
  EXPECT_EQ(client.Read().status, 401);
  EXPECT_TRUE(client.AwaitEnd());
}

TEST(Connection, ARefusalArrivesThoughTheClientStillSends) {
  HttpServerOptions options;
  options.limits.request.body_bytes_max = 1000;
  HttpHarness harness(options);
  for (const char* length : {"Content-Length: 8000000\r\n", "Transfer-Encoding: chunked\r\n"}) {
    HttpClient client(harness.port());
    std::thread sender([&] {
      client.Send(absl::StrCat("POST /echo HTTP/1.1\r\nHost: h\r\n", length, "\r\n"));
      client.Send("7a1200\r\n" + std::string(8'000'000, 'x'));
    });
    EXPECT_EQ(client.Read().status, 413) << length;
    sender.join();
  }
}

TEST(Connection, NoticesAClientThatGoesAway) {
  HttpHarness harness;
  for (int i = 1; i <= 3; ++i) {
    auto client = std::make_unique<HttpClient>(harness.port());
    client->Get("/stream");
    EXPECT_EQ(client->ReadHead().status, 200);
    EXPECT_EQ(client->ReadChunk(), "begun");
    client = nullptr;
    EXPECT_TRUE(Await([&] { return harness.handler().gone == i; }));
  }
  EXPECT_TRUE(Await([&] { return harness.Stats().connections == 0; }));
}

// It cannot be told from one that has gone, so a stream ends; what was answered already still
// comes.
TEST(Connection, AClientThatClosesItsSideGetsWhatWasAnswered) {
  HttpHarness harness;
  HttpClient stream(harness.port());
  stream.Get("/stream");
  EXPECT_EQ(stream.ReadHead().status, 200);
  ::shutdown(stream.fd(), SHUT_WR);
  EXPECT_TRUE(Await([&] { return harness.handler().gone == 1; }));
  EXPECT_TRUE(stream.AwaitEnd());
  for (int i = 0; i < 20; ++i) {
    HttpClient client(harness.port());
    client.Post("/echo", "one");
    client.Post("/echo", std::string(100'000, 'x'));
    ::shutdown(client.fd(), SHUT_WR);
    EXPECT_EQ(client.Read().body, "one");
    EXPECT_EQ(client.Read().body.size(), 100'000U);
    EXPECT_TRUE(client.AwaitEnd());
  }
  // Half a request is none.
  HttpClient half(harness.port());
  half.Send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nab");
  ::shutdown(half.fd(), SHUT_WR);
  EXPECT_TRUE(half.AwaitEnd());
  EXPECT_EQ(half.input(), "");
}

TEST(Connection, WritesNoFasterThanTheClientReads) {
  HttpHarness harness;
  HttpClient client(harness.port(), 4096);
  client.Get("/big");
  ASSERT_TRUE(Await([&] { return harness.handler().written > 0; }));
  size_t before = 0;
  // What the kernel takes, and no more.
  EXPECT_TRUE(Await([&] {
    const size_t now = harness.handler().written;
    const bool same = now == before;
    before = now;
    absl::SleepFor(absl::Milliseconds(50));
    return same;
  }));
  EXPECT_LT(harness.handler().written, 1'000'000U);
  EXPECT_EQ(client.ReadHead().status, 200);
  for (int i = 0; i < 100; ++i) ASSERT_FALSE(client.ReadChunk().empty());
  EXPECT_TRUE(Await([&] { return harness.handler().written > before; }));
}

// A client that sends requests and takes no answers.
TEST(Connection, ReadsNoMoreRequestsThanItAnswers) {
  HttpHarness harness;
  HttpClient client(harness.port(), 4096);
  const timeval patience{1, 0};
  ::setsockopt(client.fd(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  constexpr size_t kMany = 32 << 20;
  const std::string request =
      "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 10000\r\n\r\n" + std::string(10'000, 'x');
  size_t sent = 0;
  while (sent < kMany) {
    const size_t at = sent % request.size();
    const ssize_t size =
        ::send(client.fd(), request.data() + at, request.size() - at, MSG_NOSIGNAL);
    if (size <= 0) break;
    sent += static_cast<size_t>(size);
  }
  EXPECT_LT(sent, kMany);
  // When it takes them, all go on.
  for (size_t i = 0; i < sent / request.size(); ++i) {
    const HttpAnswer answer = client.Read();
    ASSERT_EQ(answer.status, 200) << i;
    ASSERT_EQ(answer.body.size(), 10'000U) << i;
  }
}

TEST(Connection, ClosesWhoDoesNotRead) {
  HttpHarness harness(Hasty());
  HttpClient client(harness.port(), 4096);
  client.Get("/big");
  EXPECT_TRUE(Await([&] { return harness.handler().gone == 1; }));
  EXPECT_EQ(harness.Stats().slow_clients, 1U);
}

TEST(Connection, ClosesWhoSendsNothingOrTooSlowly) {
  HttpHarness harness(Hasty());
  HttpClient silent(harness.port());
  EXPECT_TRUE(silent.AwaitEnd());
  HttpClient half(harness.port());
  half.Send("GET /echo HT");
  EXPECT_EQ(half.Read().status, 408);
  EXPECT_TRUE(half.AwaitEnd());
  HttpClient body(harness.port());
  body.Send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\nab");
  EXPECT_EQ(body.Read().status, 408);
  EXPECT_TRUE(body.AwaitEnd());
  EXPECT_EQ(harness.Stats().stalled_requests, 2U);
}

TEST(Connection, BodiesOfAllConnectionsTogetherAreBounded) {
  HttpServerOptions options;
  options.limits.bodies_bytes_max = 100'000;
  HttpHarness harness(options);
  HttpClient first(harness.port());
  first.Send("POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: 90000\r\n\r\n" +
             std::string(80'000, 'x'));
  HttpClient second(harness.port());
  // Until the first one's bytes have been counted.
  EXPECT_TRUE(Await([&] {
    HttpClient another(harness.port());
    another.Post("/echo", std::string(30'000, 'y'));
    return another.Read().status == 503;
  }));
  second.Post("/echo", "small");
  EXPECT_EQ(second.Read().status, 200);
  first.Send(std::string(10'000, 'x'));
  EXPECT_EQ(first.Read().body.size(), 90'000U);
  second.Post("/echo", std::string(90'000, 'y'));
  EXPECT_EQ(second.Read().status, 200);
}

// Those that have come in whole, too: they wait to be parsed, or for the worker.
TEST(Connection, BodiesCountUntilTheirAnswerBegins) {
  HttpServerOptions options;
  options.limits.bodies_bytes_max = 100'000;
  HttpHarness harness(options);
  auto first = std::make_unique<HttpClient>(harness.port());
  first->Post("/silent", std::string(90'000, 'x'));
  ASSERT_TRUE(Await([&] { return harness.handler().streams == 1; }));
  const auto ask = [&harness] {
    HttpClient client(harness.port());
    client.Post("/echo", std::string(20'000, 'y'));
    return client.Read().status;
  };
  EXPECT_EQ(ask(), 503);
  first = nullptr;
  EXPECT_TRUE(Await([&] { return harness.handler().gone == 1; }));
  EXPECT_EQ(ask(), 200);
  HttpClient stream(harness.port());
  stream.Post("/stream", std::string(90'000, 'x'));
  EXPECT_EQ(stream.ReadHead().status, 200);
  EXPECT_EQ(ask(), 200);
}

}  // namespace
}  // namespace retroinfer::gateway
