// Tenants with keys of their own, on one server.
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "tests/integration/generate_stream.h"
#include "tests/integration/service_processes.h"

namespace retroinfer::test_support {
namespace {

namespace v1 = generation::v1;

constexpr char kTenants[] = R"([[tenant]]
name = "search"
keys = ["key of search"]
max_requests = 1

[[tenant]]
name = "batch"
keys = ["key of batch"]
highest_priority = 10
)";

class TenantsServicesTest : public testing::Test {
 protected:
  TenantsServicesTest() {
    path_ = (processes_.folder() / "tenants.toml").string();
    Write(kTenants);
    processes_.options().worker_arguments = {"--max-model-len", "16384", "--tenants-file", path_};
    processes_.StartBoth();
  }
  void Write(const std::string& text) { std::ofstream(path_, std::ios::trunc) << text; }

  static v1::GenerateRequest Request(int prompt_tokens, int max_tokens) {
    return SampledRequest(RandomTokens(prompt_tokens, 1), max_tokens, 1);
  }
  // Generates to the end; the last event.
  absl::StatusOr<v1::Finished> Run(const std::string& key, const v1::GenerateRequest& request) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Minutes(2)));
    if (!key.empty()) context.AddMetadata("authorization", absl::StrCat("Bearer ", key));
    const auto reader = processes_.worker_stub().Generate(&context, request);
    v1::GenerateResponse response;
    v1::Finished finished;
    while (reader->Read(&response)) {
      if (response.has_finished()) finished = response.finished();
    }
    const absl::Status status = common::FromGrpcStatus(reader->Finish());
    if (!status.ok()) return status;
    return finished;
  }
  std::string ReasonOf(const std::string& key, const v1::GenerateRequest& request) {
    return common::ReasonOf(Run(key, request).status()).reason;
  }

  ServiceProcesses processes_;
  std::string path_;
};

TEST_F(TenantsServicesTest, AKeySaysWhoCallsAndTenantsShareNothing) {
  v1::GenerateRequest request = Request(9500, 2);
  EXPECT_EQ(ReasonOf("", request), "API_KEY_REQUIRED");
  EXPECT_EQ(ReasonOf("another key", request), "API_KEY_REQUIRED");
  ASSERT_TRUE(Run("key of search", request).ok());
  EXPECT_GT(Run("key of search", request)->cached_tokens(), 8000);
  EXPECT_EQ(Run("key of batch", request)->cached_tokens(), 0) << "another tenant's are not found";
  request.set_priority(9);
  EXPECT_EQ(ReasonOf("key of batch", request), "PRIORITY_NOT_ALLOWED");
  request.set_tenant("search");
  EXPECT_EQ(ReasonOf("key of batch", request), "TENANT_NOT_ALLOWED");
  EXPECT_TRUE(Run("key of search", request).ok());
  const std::string metrics = processes_.WorkerMetrics();
  EXPECT_TRUE(absl::StrContains(metrics, "tenant_requests_total{tenant=\"search\"} 3")) << metrics;
  EXPECT_TRUE(absl::StrContains(metrics, "tenant_requests_total{tenant=\"batch\"} 1"));
}

TEST_F(TenantsServicesTest, LimitsAndIdsAreEachTenantsOwn) {
  v1::GenerateRequest long_one = Request(20, 16000);
  long_one.set_request_id("same");
  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer key of search");
  const auto reader = processes_.worker_stub().Generate(&context, long_one);
  v1::GenerateResponse response;
  ASSERT_TRUE(reader->Read(&response));

  const absl::Status refused = Run("key of search", Request(20, 2)).status();
  EXPECT_EQ(common::ReasonOf(refused).reason, "TENANT_QUEUE_FULL") << refused;
  EXPECT_TRUE(common::RetryDelayOf(refused).has_value());
  v1::GenerateRequest same_id = Request(20, 2);
  same_id.set_request_id("same");
  EXPECT_TRUE(Run("key of batch", same_id).ok()) << "ids of tenants do not meet";

  const auto abort = [&](const std::string& key) {
    grpc::ClientContext abort_context;
    abort_context.AddMetadata("authorization", absl::StrCat("Bearer ", key));
    v1::AbortRequest request;
    request.set_request_id("same");
    v1::AbortResponse answer;
    EXPECT_TRUE(processes_.worker_stub().Abort(&abort_context, request, &answer).ok());
    return answer.found();
  };
  EXPECT_FALSE(abort("key of batch")) << "nobody ends another one's requests";
  EXPECT_TRUE(abort("key of search"));
  while (reader->Read(&response)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_TRUE(Run("key of search", Request(20, 2)).ok());
}

TEST_F(TenantsServicesTest, TheFileIsReadAgainOnSighup) {
  const auto await = [&](const std::string& key, const std::string& reason) {
    for (int i = 0; i < 500; ++i) {
      if (ReasonOf(key, Request(20, 1)) == reason) return true;
      absl::SleepFor(absl::Milliseconds(20));
    }
    return false;
  };
  Write("[[tenant]]\nname = \"search\"\nkeys = [\"a new key\"]\n");
  processes_.worker().Signal(SIGHUP);
  EXPECT_TRUE(await("a new key", ""));
  EXPECT_EQ(ReasonOf("key of search", Request(20, 1)), "API_KEY_REQUIRED");
  Write("[[tenant]]\nname = \"nobody\"\n");
  processes_.worker().Signal(SIGHUP);
  EXPECT_TRUE(await("key of search", "API_KEY_REQUIRED"));
  EXPECT_TRUE(await("a new key", "")) << "a bad file changes nothing";
}

}  // namespace
}  // namespace retroinfer::test_support
