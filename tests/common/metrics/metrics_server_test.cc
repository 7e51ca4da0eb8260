#include "common/metrics/metrics_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "tests/support/http2_client.h"
#include "tests/support/http_get.h"

namespace retroinfer::common {
namespace {

using test_support::Http2Client;
using test_support::HttpGet;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class MetricsServerTest : public ::testing::Test {
 protected:
  MetricsServerTest() {
    auto server = MetricsServer::Start("127.0.0.1:0", [this] {
      absl::MutexLock lock(&mutex_);
      return text_;
    });
    EXPECT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  std::string Get(const std::string& path = "/metrics") const {
    return HttpGet(server_->port(), path);
  }
  // A connection that has sent `bytes` and does nothing more.
  std::unique_ptr<Http2Client> Open(const std::string& bytes) const {
    auto client = std::make_unique<Http2Client>(absl::StrCat("127.0.0.1:", server_->port()), false);
    client->Raw(bytes);
    client->Flush();  // false if the server has closed already, as it does with garbage
    return client;
  }

  void SetText(const std::string& text) {
    absl::MutexLock lock(&mutex_);
    text_ = text;
  }

  absl::Mutex mutex_;
  std::string text_ ABSL_GUARDED_BY(mutex_) = "a_metric 1\n";
  std::unique_ptr<MetricsServer> server_;
};

TEST_F(MetricsServerTest, AnswersWithTheMetrics) {
  EXPECT_THAT(Get(), StartsWith("HTTP/1.1 200 OK\r\n"));
  EXPECT_THAT(Get(), HasSubstr("Content-Type: text/plain; version=0.0.4"));
  EXPECT_THAT(Get(), HasSubstr("\r\n\r\na_metric 1\n"));
  EXPECT_THAT(Get("/metrics?a=b"), HasSubstr("a_metric 1"));
  EXPECT_THAT(Get("/"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(Get("/metricsandmore"), StartsWith("HTTP/1.1 404"));
  const std::string large(10'000'000, 'x');
  SetText(large);
  EXPECT_GT(Get().size(), large.size());
}

// With two threads that wait for what comes, two such connections shut everybody out.
TEST_F(MetricsServerTest, SilentAndSlowConnectionsHinderNobody) {
  SetText(std::string(20'000'000, 'x'));
  std::vector<std::unique_ptr<Http2Client>> open;
  for (int i = 0; i < 30; ++i) {
    open.push_back(Open(""));
    open.push_back(Open("GET /met"));
    if (i < 3) open.push_back(Open("GET /metrics HTTP/1.1\r\n\r\n"));  // whose answer is not read
  }
  const absl::Time begin = absl::Now();
  SetText("a_metric 1\n");
  EXPECT_THAT(Get(), HasSubstr("a_metric 1"));
  EXPECT_LT(absl::Now() - begin, MetricsServer::kTimeout);
}

TEST_F(MetricsServerTest, TheOldestConnectionMakesRoom) {
  std::vector<std::unique_ptr<Http2Client>> open;
  for (size_t i = 0; i < 2 * MetricsServer::kConnectionsMax; ++i) open.push_back(Open(""));
  EXPECT_THAT(Get(), HasSubstr("a_metric 1"));
  EXPECT_TRUE(open.front()->ReadUntil([&] { return !open.front()->connected(); }));
}

TEST_F(MetricsServerTest, GarbageIsAnswered) {
  for (const char* bad : {"POST /metrics HTTP/1.1\r\n\r\n", "\r\n\r\n", "GET\r\n\r\n"}) {
    const auto client = Open(bad);
    EXPECT_TRUE(client->ReadUntil([&] { return !client->connected(); })) << bad;
  }
  const auto endless = Open("GET /" + std::string(100'000, 'x'));
  EXPECT_TRUE(endless->ReadUntil([&] { return !endless->connected(); }));
  EXPECT_THAT(Get(), HasSubstr("a_metric 1"));
}

}  // namespace
}  // namespace retroinfer::common
