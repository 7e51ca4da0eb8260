#include "gpu_worker/store_link/store_client.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "absl/time/clock.h"
#include "tests/gpu_worker/store_link/in_process_store.h"

namespace retroinfer {
namespace {

namespace v1 = kvstore::v1;

constexpr absl::Duration kLong = absl::Seconds(10);

v1::AttachWorkerRequest Request() {
  v1::AttachWorkerRequest request;
  request.mutable_geometry()->set_num_layers(kvstore::kTinyGeometry.num_layers);
  request.mutable_geometry()->set_num_kv_heads(kvstore::kTinyGeometry.num_kv_heads);
  request.mutable_geometry()->set_head_dim(kvstore::kTinyGeometry.head_dim);
  request.mutable_geometry()->set_dtype(v1::DATA_TYPE_BF16);
  request.set_model_fingerprint("model");
  request.set_num_slots(16);
  request.set_log_capacity(64);
  request.set_request_capacity(64);
  return request;
}

bool GoOn() { return true; }

TEST(StoreClientTest, AttachesReservesCommitsReleasesAndDetaches) {
  InProcessStore store;
  StoreClient client(store.target(), GoOn);
  EXPECT_FALSE(client.LeaseIsAlive());
  const auto memory = client.Attach(Request(), kLong);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->arena.bytes().size(), InProcessStore::kArenaBytes);
  EXPECT_TRUE(client.LeaseIsAlive());

  const auto extents = client.Reserve(ReserveRequest::Unnamed(3, {1024}), false, kLong);
  ASSERT_TRUE(extents.ok()) << extents.status();
  const Extent& extent = extents->front();
  EXPECT_EQ(extent.num_tokens, 1024u);
  const uint32_t used =
      kvstore::WriteSegment(memory->arena.bytes().subspan(size_t{extent.first_page} * kPageBytes,
                                                          size_t{extent.num_pages} * kPageBytes),
                            kvstore::kTinyGeometry, 4, 1024);
  v1::Segment segment;
  segment.set_extent_id(extent.id);
  segment.set_token_begin(4);
  segment.set_token_count(1024);
  const auto committed = client.Commit(3, {segment}, kLong);
  ASSERT_TRUE(committed.ok()) << committed.status();
  EXPECT_EQ(committed->front().num_pages, used);
  EXPECT_EQ(committed->front().num_tokens, 1024u);
  EXPECT_TRUE(client.Release(3, kLong).ok());
  client.Detach(kLong);
  EXPECT_FALSE(client.LeaseIsAlive());
  EXPECT_FALSE(store.Stats().worker_attached());
}

TEST(StoreClientTest, AsksForTheArenasSizeWithoutAttaching) {
  InProcessStore store;
  StoreClient client(store.target(), GoOn);
  const auto num_pages = client.ArenaPages(kLong);
  ASSERT_TRUE(num_pages.ok()) << num_pages.status();
  EXPECT_EQ(*num_pages, InProcessStore::kArenaBytes / kPageBytes);
  EXPECT_FALSE(client.LeaseIsAlive());
  // Also while another worker is attached.
  StoreClient other(store.target(), GoOn);
  ASSERT_TRUE(other.Attach(Request(), kLong).ok());
  EXPECT_EQ(*client.ArenaPages(kLong), *num_pages);
}

TEST(StoreClientTest, AStoreThatHasNoArenaYetIsNotReady) {
  kvstore::TemporaryFolder folder;
  kvstore::StoreServerOptions options;
  options.arena_bytes = InProcessStore::kArenaBytes;
  options.socket_dir = folder.path();
  const auto server = kvstore::StoreServer::Start(options);
  ASSERT_TRUE(server.ok()) << server.status();
  StoreClient client("unix:" + folder.path() + "/kv_store.sock", GoOn);
  EXPECT_EQ(client.ArenaPages(kLong).status().code(), absl::StatusCode::kUnavailable);
  ASSERT_TRUE((*server)->ObtainArena([] { return false; }).ok());
  EXPECT_TRUE(client.ArenaPages(kLong).ok());
}

TEST(StoreClientTest, HandsTheMemoryBackWithWhatIsInIt) {
  InProcessStore store;
  auto client = std::make_unique<StoreClient>(store.target(), GoOn);
  const auto memory = client->Attach(Request(), kLong);
  ASSERT_TRUE(memory.ok());
  const auto extents = client->Reserve(ReserveRequest::Unnamed(3, {1024, 2048}), false, kLong);
  ASSERT_TRUE(extents.ok());
  ExtentLedger ledger;
  ledger.Reserve({.sequence_id = 3}, *extents);
  client->Detach(kLong);
  EXPECT_EQ(store.Stats().sequences(), 0u);

  client = std::make_unique<StoreClient>(store.target(), GoOn);
  const absl::Status status = client->HandBack(Request(), *memory, ledger, kLong);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(store.Stats().sequences(), 1u);
  EXPECT_EQ(store.Stats().reserved_extents(), 2u);
  const auto again = client->Reserve(ReserveRequest::Unnamed(3, {1024, 2048}), false, kLong);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->front().id, extents->front().id);
}

TEST(StoreClientTest, MemoryThatAnotherWorkerHadIsNotTakenBack) {
  InProcessStore store;
  auto first = std::make_unique<StoreClient>(store.target(), GoOn);
  const auto memory = first->Attach(Request(), kLong);
  ASSERT_TRUE(memory.ok());
  first->Detach(kLong);
  StoreClient second(store.target(), GoOn);
  const auto theirs = second.Attach(Request(), kLong);
  ASSERT_TRUE(theirs.ok());
  EXPECT_EQ(DataPlane::Open(memory->data_plane.bytes())->arena_taken(), 1u);
  EXPECT_EQ(DataPlane::Open(theirs->data_plane.bytes())->arena_taken(), 0u);
  second.Detach(kLong);
  first = std::make_unique<StoreClient>(store.target(), GoOn);
  const absl::Status status = first->HandBack(Request(), *memory, {}, kLong);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("another worker has used the arena"), absl::string_view::npos)
      << status;
}

TEST(StoreClientTest, ReturnsTheStoresCodes) {
  InProcessStore store;
  StoreClient client(store.target(), GoOn);
  EXPECT_EQ(client.Reserve(ReserveRequest::Unnamed(1, {1024}), false, kLong).status().code(),
            absl::StatusCode::kPermissionDenied);
  v1::AttachWorkerRequest request = Request();
  request.mutable_geometry()->set_head_dim(1);
  EXPECT_EQ(client.Attach(request, kLong).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(client.Attach(Request(), kLong).ok());
  EXPECT_EQ(client.Reserve(ReserveRequest::Unnamed(1, {8192, 8192}), false, kLong).status().code(),
            absl::StatusCode::kResourceExhausted);
  StoreClient second(store.target(), GoOn);
  EXPECT_EQ(second.Attach(Request(), kLong).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(StoreClientTest, SaysWhenThereIsNoStore) {
  StoreClient client("unix:/tmp/no_such_folder_of_retroinfer/kv_store.sock", GoOn);
  EXPECT_EQ(client.Attach(Request(), kLong).status().code(), absl::StatusCode::kUnavailable);
}

TEST(StoreClientTest, TheTickEndsACallThatGetsNoAnswer) {
  // A socket whose owner never accepts.
  kvstore::TemporaryFolder folder;
  const std::string path = folder.path() + "/silent.sock";
  common::UniqueFd silent(::socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(::bind(silent.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(silent.get(), 1), 0);
  int ticks = 0;
  StoreClient client("unix:" + path, [&] { return ++ticks < 3; });
  const absl::Time begin = absl::Now();
  EXPECT_EQ(client.Attach(Request(), absl::Seconds(30)).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_LT(absl::Now() - begin, absl::Seconds(5));
}

}  // namespace
}  // namespace retroinfer
