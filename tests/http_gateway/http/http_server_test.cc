#include "http_gateway/http/http_server.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/un.h>

#include <cstring>
#include <filesystem>
#include <vector>

#include "tests/http_gateway/http_client.h"
#include "tests/http_gateway/http_harness.h"

namespace retroinfer::gateway {
namespace {

using test_support::HttpAnswer;
using test_support::HttpClient;

TEST(HttpServer, ANewConnectionTakesThePlaceOfTheOldestIdleOne) {
  HttpServerOptions options;
  options.connections_max = 3;
  HttpHarness harness(options);
  HttpClient busy(harness.port());
  busy.Get("/stream");
  EXPECT_EQ(busy.ReadHead().status, 200);
  std::vector<std::unique_ptr<HttpClient>> idle;
  for (int i = 0; i < 3; ++i) {
    idle.push_back(std::make_unique<HttpClient>(harness.port()));
    idle.back()->Get("/echo");
    EXPECT_EQ(idle.back()->Read().status, 200);
  }
  EXPECT_TRUE(idle[0]->AwaitEnd());
  idle[2]->Get("/echo");
  EXPECT_EQ(idle[2]->Read().status, 200);
  EXPECT_EQ(harness.handler().gone, 0);
  EXPECT_EQ(harness.Stats().connections_refused, 1U);
}

TEST(HttpServer, WhoNeverAskedMakesRoomFirst) {
  HttpServerOptions options;
  options.connections_max = 3;
  HttpHarness harness(options);
  HttpClient kept(harness.port());
  kept.Get("/echo");
  EXPECT_EQ(kept.Read().status, 200);
  std::vector<std::unique_ptr<HttpClient>> silent;
  for (int i = 0; i < 10; ++i) silent.push_back(std::make_unique<HttpClient>(harness.port()));
  for (int i = 0; i < 8; ++i) EXPECT_TRUE(silent[i]->AwaitEnd());
  kept.Get("/echo");
  EXPECT_EQ(kept.Read().status, 200);
}

TEST(HttpServer, WhenAllAreBusyANewOneIsClosed) {
  HttpServerOptions options;
  options.connections_max = 1;
  HttpHarness harness(options);
  HttpClient busy(harness.port());
  busy.Get("/stream");
  EXPECT_EQ(busy.ReadHead().status, 200);
  HttpClient other(harness.port());
  EXPECT_TRUE(other.AwaitEnd());
  EXPECT_EQ(harness.handler().gone, 0);
}

TEST(HttpServer, AnAnswerThatAClientStillTakesIsNotCutForANewOne) {
  HttpServerOptions options;
  options.connections_max = 1;
  HttpHarness harness(options);
  HttpClient slow(harness.port(), 4096);
  const std::string body(8 << 20, 'x');
  slow.Post("/echo", body);
  HttpAnswer answer = slow.ReadHead();
  EXPECT_EQ(answer.status, 200);
  HttpClient other(harness.port());
  EXPECT_TRUE(other.AwaitEnd());
  EXPECT_EQ(slow.ReadBody(answer), body);
}

TEST(HttpServer, WhileItDrainsConnectionsEndWithTheirNextAnswer) {
  HttpHarness harness;
  HttpClient before(harness.port());
  before.Get("/echo");
  EXPECT_EQ(before.Read().headers.at("connection"), "keep-alive");
  harness.Run([&] { harness.server().StartDraining(); });
  HttpClient after(harness.port());
  for (HttpClient* const client : {&before, &after}) {
    client->Get("/echo");
    const HttpAnswer answer = client->Read();
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.headers.at("connection"), "close");
    EXPECT_TRUE(client->AwaitEnd());
  }
}

TEST(HttpServer, AShutdownTellsEveryClientAndListensNoMore) {
  HttpHarness harness;
  HttpClient idle(harness.port()), silent(harness.port()), half(harness.port());
  idle.Get("/echo");
  EXPECT_EQ(idle.Read().status, 200);
  silent.Get("/silent");
  ASSERT_TRUE(Await([&] { return harness.handler().streams == 1; }));
  half.Send("GET /echo HT");
  const auto is_busy = [&] {
    bool busy = false;
    harness.Run([&] { busy = harness.server().is_busy(); });
    return busy;
  };
  EXPECT_TRUE(is_busy());
  ASSERT_TRUE(Await([&] {
    int busy = 0;
    harness.Run([&] { busy = static_cast<int>(harness.server().stats().connections); });
    return busy == 3;
  }));
  HttpClient last(harness.port());  // accepted behind those: what `half` has sent was read by then
  last.Get("/echo");
  EXPECT_EQ(last.Read().status, 200);
  harness.Run([&] { harness.server().Shutdown(absl::UnavailableError("the end")); });
  EXPECT_EQ(silent.Read().status, 400);  // what this handler makes of such an error
  EXPECT_EQ(half.Read().status, 400);
  for (HttpClient* const client : {&idle, &silent, &half, &last}) EXPECT_TRUE(client->AwaitEnd());
  EXPECT_LT(HttpClient(harness.port()).fd(), 0);
}

TEST(HttpServer, ListensOnUnixSocketsAndRemovesThem) {
  std::string folder = (std::filesystem::temp_directory_path() / "retroinfer-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/http.sock";
  {
    HttpServerOptions options;
    options.addresses = {"127.0.0.1:0", "unix:" + path};
    HttpHarness harness(options);
    const common::UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM, 0));
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::strncpy(name.sun_path, path.c_str(), sizeof(name.sun_path) - 1);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  std::filesystem::remove_all(folder);
}

TEST(HttpServer, RefusesAddressesAndFilesThatAreNone) {
  boost::asio::io_context io;
  PathHandler handler;
  HttpServerOptions options;
  options.addresses = {"nowhere"};
  EXPECT_FALSE(HttpServer::Start(options, &handler, io).ok());
  options.addresses = {"127.0.0.1:0"};
  options.tls.certificate = "/nothing/here";
  EXPECT_FALSE(HttpServer::Start(options, &handler, io).ok());
  options.tls.key = "/nothing/here";
  EXPECT_FALSE(HttpServer::Start(options, &handler, io).ok());
}

}  // namespace
}  // namespace retroinfer::gateway
