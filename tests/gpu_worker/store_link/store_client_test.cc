#include "gpu_worker/store_link/store_client.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <thread>

#include "absl/time/clock.h"
#include "common/shm/descriptor_protocol.h"
#include "common/shm/fd_channel.h"
#include "gpu_worker/store_link/declaration_parts.h"
#include "tests/gpu_worker/store_link/in_process_store.h"
#include "tests/kv_store_service/named_chain.h"
#include "tests/support/counting_relay.h"

namespace retroinfer {
namespace {

namespace v1 = kvstore::v1;

constexpr absl::Duration kLong = absl::Seconds(10);

v1::AttachWorkerRequest Request() {
  v1::AttachWorkerRequest request;
  request.mutable_geometry()->set_num_layers(kvstore::kTinyGeometry.num_layers);
  request.mutable_geometry()->set_num_kv_heads(kvstore::kTinyGeometry.num_kv_heads);
  request.mutable_geometry()->set_head_dim(kvstore::kTinyGeometry.head_dim);
  request.mutable_geometry()->set_kv_format(2);
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
  auto memory = client->Attach(Request(), kLong);
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
  auto memory = first->Attach(Request(), kLong);
  ASSERT_TRUE(memory.ok());
  first->Detach(kLong);
  StoreClient second(store.target(), GoOn);
  const auto theirs = second.Attach(Request(), kLong);
  ASSERT_TRUE(theirs.ok());
  EXPECT_EQ(DataPlane::Open(memory->data_planes[0].bytes())->arena_taken(), 1u);
  EXPECT_EQ(DataPlane::Open(theirs->data_planes[0].bytes())->arena_taken(), 0u);
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

// The connection breaks, and the worker, which still has the memory, is in the middle of a segment.
TEST(StoreClientTest, WhatALiveFormerWorkerMayWriteToIsNotGivenAway) {
  InProcessStore store;
  auto first = std::make_unique<StoreClient>(store.target(), GoOn);
  auto memory = first->Attach(Request(), kLong);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const auto theirs = first->Reserve(ReserveRequest::Unnamed(1, {1024}), false, kLong);
  ASSERT_TRUE(theirs.ok()) << theirs.status();
  first.reset();
  while (store.Stats().worker_attached()) absl::SleepFor(absl::Milliseconds(2));
  const uint64_t all = store.Stats().arena_pages();
  EXPECT_EQ(store.Stats().free_pages(), all - theirs->front().num_pages);
  StoreClient second(store.target(), GoOn);
  ASSERT_TRUE(second.Attach(Request(), kLong).ok());
  const auto ours = second.Reserve(ReserveRequest::Unnamed(1, {1024}), false, kLong);
  ASSERT_TRUE(ours.ok()) << ours.status();
  EXPECT_NE(ours->front().first_page, theirs->front().first_page);
  *memory = {};  // as the end of its process does
  while (store.Stats().free_pages() < all - ours->front().num_pages) {
    absl::SleepFor(absl::Milliseconds(2));
  }
}

TEST(StoreClientTest, ManySegmentsComeBackInManyParts) {
  kvstore::TemporaryFolder folder;
  kvstore::StoreServerOptions options;
  options.arena_bytes = 64 << 20;
  options.socket_dir = folder.path();
  const auto server = kvstore::StoreServer::Start(options);
  ASSERT_TRUE(server.ok() && (*server)->ObtainArena([] { return false; }).ok());
  v1::AttachWorkerRequest attach = Request();
  attach.mutable_geometry()->set_num_layers(1);
  attach.mutable_geometry()->set_num_kv_heads(1);
  const KvGeometry geometry{1, 1, 64, kBf16Kv};
  const std::string target = "unix:" + folder.path() + "/kv_store.sock";
  auto client = std::make_unique<StoreClient>(target, GoOn);
  auto memory = client->Attach(attach, kLong);
  ASSERT_TRUE(memory.ok()) << memory.status();
  ExtentLedger ledger;
  constexpr uint64_t kSegments = 150;
  for (uint64_t id = 1; id <= kSegments; ++id) {
    const auto identity = kvstore::NamedChain({static_cast<int32_t>(id)})[0];
    const ReserveRequest request = kvstore::NamedRequest(id, {identity});
    const auto extents = client->Reserve(request, false, kLong);
    ASSERT_TRUE(extents.ok()) << extents.status();
    const Extent& extent = extents->front();
    ledger.Reserve(request, *extents);
    kvstore::WriteSegment(memory->arena.bytes().subspan(size_t{extent.first_page} * kPageBytes,
                                                        size_t{extent.num_pages} * kPageBytes),
                          geometry, 4, 1024);
    v1::Segment segment;
    segment.set_extent_id(extent.id);
    segment.set_token_begin(4);
    segment.set_token_count(1024);
    ToProto(identity, segment.mutable_identity());
    const auto committed = client->Commit(id, {segment}, kLong);
    ASSERT_TRUE(committed.ok()) << committed.status();
    ledger.Commit(id, extent.id, 4, committed->front().num_pages,
                  std::make_shared<const SegmentIdentity>(identity));
    if (id % 3 == 0) ledger.Release(id);
  }
  client = std::make_unique<StoreClient>(target, GoOn);
  absl::Status status = absl::UnavailableError("not yet");
  while (absl::IsFailedPrecondition(status) || absl::IsUnavailable(status)) {  // the old lease ends
    status = client->HandBack(attach, *memory, ledger, kLong, /*part_bytes=*/8 << 10);
  }
  ASSERT_TRUE(status.ok()) << status;
  auto stub =
      v1::KvStoreService::NewStub(grpc::CreateChannel(target, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::GetStatsResponse stats;
  ASSERT_TRUE(stub->GetStats(&context, {}, &stats).ok());
  EXPECT_EQ(stats.named_segments(), kSegments);
  EXPECT_EQ(stats.sequences(), kSegments - kSegments / 3);
  EXPECT_GT(stats.unreferenced_pages(), 0u);
}

// Takes 100 ms for each part of a declaration, as a slow machine would.
class SlowStore final : public v1::KvStoreService::Service {
 public:
  explicit SlowStore(const std::string& folder)
      : descriptor_path_(folder + "/fd.sock"),
        listener_(*common::FdListener::Listen(descriptor_path_)) {
    welcome_ = std::thread([this] {
      while (!stop_) {
        auto channel = listener_.Accept();
        if (channel.ok()) channels_.push_back(*std::move(channel));
        if (!channel.ok()) absl::SleepFor(absl::Milliseconds(2));
        for (common::FdChannel& waiting : channels_) {
          if (!waiting.Receive(absl::ZeroDuration()).ok()) continue;
          EXPECT_TRUE(waiting.Send(uint32_t(DescriptorMessage::kWelcome), "", {}, kLong).ok());
        }
      }
    });
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + folder + "/slow.sock", grpc::InsecureServerCredentials());
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  ~SlowStore() override {
    server_->Shutdown();
    stop_ = true;
    welcome_.join();
  }
  grpc::Status AttachWorker(grpc::ServerContext*, const v1::AttachWorkerRequest*,
                            v1::AttachWorkerResponse* response) override {
    response->set_attach_token(std::string(kAttachTokenBytes, 't'));
    response->set_descriptor_socket_path(descriptor_path_);
    return grpc::Status::OK;
  }
  grpc::Status DeclareSegments(grpc::ServerContext*, const v1::DeclareSegmentsRequest* request,
                               v1::DeclareSegmentsResponse*) override {
    EXPECT_EQ(request->part(), num_parts_++);
    absl::SleepFor(absl::Milliseconds(100));
    return grpc::Status::OK;
  }
  uint64_t num_parts() const { return num_parts_; }

 private:
  const std::string descriptor_path_;
  common::FdListener listener_;
  std::vector<common::FdChannel> channels_;  // of welcome_
  std::atomic<uint64_t> num_parts_{0};
  std::atomic<bool> stop_{false};
  std::thread welcome_;
  std::unique_ptr<grpc::Server> server_;
};

TEST(StoreClientTest, ADeclarationMayTakeLongerThanAnyOfItsSteps) {
  kvstore::TemporaryFolder folder;
  SlowStore store(folder.path());
  ExtentLedger ledger;
  for (uint64_t id = 1; id <= 40; ++id) {
    ledger.Reserve({.sequence_id = id}, {{id, static_cast<uint32_t>(id), 1, 1024, false}});
  }
  SharedMemory memory;
  memory.arena = *common::SealedMemory::Create("test arena", 4096, 1);
  memory.data_planes.push_back(*common::SealedMemory::Create("test plane", 4096, 1));
  StoreClient client("unix:" + folder.path() + "/slow.sock", GoOn);
  constexpr absl::Duration kStep = absl::Seconds(3);
  const absl::Time begin = absl::Now();
  const absl::Status status = client.HandBack(Request(), memory, ledger, kStep, /*part_bytes=*/1);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_GT(absl::Now() - begin, kStep);
  EXPECT_EQ(store.num_parts(), 40u);
}

// Names of a prompt of a million tokens are asked for again and again while a disk is read.
TEST(StoreClientTest, TokenIdsGoOverOnceForWhatIsShared) {
  InProcessStore store;
  const std::string path = store.folder() + "/relay.sock";
  CountingRelay relay(path, store.folder() + "/kv_store.sock");
  StoreClient client("unix:" + path, GoOn);
  const auto memory = client.Attach(Request(), kLong);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const auto bytes_of = [&](const ReserveRequest& request, size_t num_cached) {
    const uint64_t before = relay.bytes_to_server();
    const auto extents = client.Reserve(request, false, kLong);
    EXPECT_TRUE(extents.ok()) << extents.status();
    EXPECT_EQ(std::count_if(extents->begin(), extents->end(),
                            [](const Extent& extent) { return extent.cached; }),
              num_cached);
    return relay.bytes_to_server() - before;
  };
  std::vector<int32_t> texts(122);
  for (size_t i = 0; i < texts.size(); ++i) texts[i] = static_cast<int32_t>(i) + 100;
  ReserveRequest million = kvstore::NamedRequest(1, kvstore::NamedChain(texts, 8192));
  million.cached_only = true;
  EXPECT_LT(bytes_of(million, 0), 8u << 10);  // with token ids: 2.9 MB

  const auto chain = kvstore::NamedChain({1, 2, 3});
  const auto extents = client.Reserve(kvstore::NamedRequest(2, chain), false, kLong);
  ASSERT_TRUE(extents.ok()) << extents.status();
  for (size_t i = 0; i < 2; ++i) {
    const Extent& extent = (*extents)[i];
    kvstore::WriteSegment(memory->arena.bytes().subspan(size_t{extent.first_page} * kPageBytes,
                                                        size_t{extent.num_pages} * kPageBytes),
                          kvstore::kTinyGeometry, 4 + 1024 * i, 1024);
    v1::Segment segment;
    segment.set_extent_id(extent.id);
    segment.set_token_begin(4 + 1024 * i);
    segment.set_token_count(1024);
    ToProto(chain[i], segment.mutable_identity());
    ASSERT_TRUE(client.Commit(2, {segment}, kLong).ok());
  }
  ASSERT_TRUE(client.Release(2, kLong).ok());
  const uint64_t bytes = bytes_of(kvstore::NamedRequest(3, chain), 2);
  EXPECT_GT(bytes, 2 * 1024u * 2);
  EXPECT_LT(bytes, 3 * 1024u * 2);
  auto other = chain;
  other[0].token_ids[7] ^= 1;  // the name of other tokens, as a collision would give it
  ReserveRequest look = kvstore::NamedRequest(4, other);
  look.cached_only = true;
  bytes_of(look, 0);
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
