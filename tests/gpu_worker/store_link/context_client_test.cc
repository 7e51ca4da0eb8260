#include "gpu_worker/store_link/context_client.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/fake_context_store.h"

namespace retroinfer {
namespace {

grpc::StatusCode List(ContextClient& client) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
  kvstore::v1::ListContextsResponse response;
  return client.stub().ListContexts(&context, {}, &response).error_code();
}

TEST(ContextClient, CallsTheStore) {
  std::string folder = (std::filesystem::temp_directory_path() / "context-XXXXXX").string();
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  ContextClient client("unix:" + folder + "/fake_context_store.sock");
  EXPECT_EQ(List(client), grpc::StatusCode::UNAVAILABLE);
  {
    FakeContextStore store(folder, 0);
    // It may still be waiting to connect again.
    grpc::StatusCode code = grpc::StatusCode::UNAVAILABLE;
    for (int i = 0; i < 100 && code != grpc::StatusCode::OK; ++i) {
      code = List(client);
      absl::SleepFor(absl::Milliseconds(20));
    }
    EXPECT_EQ(code, grpc::StatusCode::OK);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace retroinfer
