#include "client/command/connection.h"

#include <gmock/gmock.h>
#include <grpcpp/test/client_context_test_peer.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "common/rpc/context_affinity.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "tests/support/worker_harness.h"

namespace retroinfer::client {
namespace {

using ::testing::HasSubstr;

grpc::Status GetModelInfo(const Connection& connection) {
  grpc::ClientContext context;
  connection.Prepare(&context);
  generation::v1::GetModelInfoResponse info;
  return connection.stub().GetModelInfo(&context, {}, &info);
}

TEST(Connection, SendsTheApiKey) {
  WorkerHarness::Settings settings;
  settings.server.keys = *common::KeyHolder::Open("secret", "");
  WorkerHarness worker(settings);
  ConnectionOptions options;
  options.address = worker.address();
  const auto without = Connection::Open(options);
  ASSERT_TRUE(without.ok());
  const grpc::Status refused = GetModelInfo(**without);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT((*without)->Explain(refused), HasSubstr("--api-key-file"));

  options.api_key_file = (worker.folder() / "key").string();
  std::ofstream(options.api_key_file) << "secret\n";
  const auto with = Connection::Open(options);
  ASSERT_TRUE(with.ok());
  EXPECT_TRUE(GetModelInfo(**with).ok());
}

TEST(Connection, NamesWhatACallIsAbout) {
  const auto plain = Connection::Open({});
  const auto named = Connection::Open({.context_affinity = "handbook"});
  ASSERT_TRUE(plain.ok() && named.ok());
  const auto sent = [](const Connection& connection, const std::string& affinity) {
    grpc::ClientContext context;
    connection.Prepare(&context, affinity);
    const auto metadata = grpc::testing::ClientContextTestPeer(&context).GetSendInitialMetadata();
    const auto found = metadata.find(common::kContextAffinityKey);
    return found == metadata.end() ? std::string("none") : found->second;
  };
  EXPECT_EQ(sent(**plain, ""), "none");
  EXPECT_EQ(sent(**plain, "1234"), "1234");
  EXPECT_EQ(sent(**named, "1234"), "handbook");
  EXPECT_EQ(sent(**named, ""), "handbook");
  EXPECT_EQ(Connection::Open({.context_affinity = "two words"}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(Connection, ExplainsErrors) {
  const auto connection = Connection::Open({.address = "unix:/no/such/socket"});
  ASSERT_TRUE(connection.ok());
  EXPECT_THAT((*connection)->Explain(GetModelInfo(**connection)),
              HasSubstr("no worker answers at unix:/no/such/socket"));
  const absl::Status draining =
      common::WithReason(absl::UnavailableError("the server is shutting down"), "DRAINING");
  EXPECT_EQ((*connection)->Explain(common::ToGrpcStatus(draining)),
            "the server is shutting down [UNAVAILABLE DRAINING]");
  EXPECT_EQ((*connection)->Explain(common::ToGrpcStatus(absl::InternalError("oops"))),
            "oops [INTERNAL]");
}

TEST(Connection, FilesThatCannotBeUsedAreErrors) {
  EXPECT_EQ(Connection::Open({.api_key_file = "/no/such"}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(Connection::Open({.tls_ca_file = "/no/such"}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(Connection::Open({.tls_certificate_file = "/x"}).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Connection::Open({.tls_ca_file = "/x", .tls_key_file = "/y"}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ReadWholeFile, ReadsAllOrSaysWhy) {
  const auto path = std::filesystem::temp_directory_path() / "retroinfer_read_whole_file_test";
  const std::string text(200'000, 'x');
  std::ofstream(path) << text;
  EXPECT_EQ(*ReadWholeFile(path.string()), text);
  std::filesystem::remove(path);
  EXPECT_THAT(std::string(ReadWholeFile(path.string()).status().message()),
              HasSubstr(path.string()));
  EXPECT_FALSE(ReadWholeFile("/").ok());
  EXPECT_EQ(ReadWholeFile("/dev/zero").status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace retroinfer::client
