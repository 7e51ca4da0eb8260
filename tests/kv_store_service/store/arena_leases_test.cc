#include "kv_store_service/store/arena_leases.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/shm/descriptor_protocol.h"
#include "common/status/error_reason.h"
#include "kv_store_service/store/kv_store.h"
#include "tests/kv_store_service/memory_copy.h"
#include "tests/kv_store_service/named_chain.h"
#include "tests/kv_store_service/segment_writer.h"
#include "tests/kv_store_service/temporary_folder.h"

namespace retroinfer::kvstore {
namespace {

constexpr uint64_t kArenaBytes = 8 << 20;
constexpr uint64_t kArenaPages = kArenaBytes / kPageBytes;

class ArenaLeasesTest : public testing::Test {
 protected:
  ArenaLeasesTest() : store_(NewStore()) { store_->leases().SetArena(NewArena()); }

  std::unique_ptr<KvStore> NewStore() {
    KvStore::Options options;
    options.attach_timeout = absl::Seconds(100);
    options.worker_lives = [this](const std::string&) { return worker_lives_.load(); };
    options.make_plane_memory = make_plane_memory_;
    return std::make_unique<KvStore>(options, StateFile(folder_.path() + "/state"));
  }
  static common::SealedMemory NewArena() {
    return *common::SealedMemory::Create("test arena", kArenaBytes, 1);
  }
  static AttachParameters Parameters() {
    return {kTinyGeometry, "model", 16, 64, 64, /*hand_back=*/false};
  }
  static AttachParameters ParametersOfRanks(uint32_t num_planes) {
    AttachParameters parameters = Parameters();
    parameters.num_planes = num_planes;
    return parameters;
  }
  // Attaches and takes the descriptors. Returns the token.
  std::string AttachWorker() { return AttachWorker(Parameters()); }
  std::string AttachWorker(const AttachParameters& parameters) {
    const auto result = store_->leases().Attach(parameters);
    EXPECT_TRUE(result.ok()) << result.status();
    auto pair = store_->leases().ClaimDescriptors(result->token, 1);
    EXPECT_TRUE(pair.ok()) << pair.status();
    held_ = *std::move(pair);
    return result->token;
  }
  // Hands the held memory back. Returns the token.
  absl::StatusOr<std::string> HandBack(AttachParameters parameters) {
    parameters.hand_back = true;
    const auto result = store_->leases().Attach(parameters);
    if (!result.ok()) return result.status();
    const absl::Status status = store_->leases().HandBack(result->token, 1, CopyOf(held_));
    if (!status.ok()) return status;
    return result->token;
  }
  absl::StatusCode Reserve(const std::string& token, uint64_t call_number, uint64_t sequence) {
    return store_->reservations()
        .Reserve(token, call_number, ReserveRequest::Unnamed(sequence, {1024}))
        .status()
        .code();
  }

  TemporaryFolder folder_;
  std::atomic<bool> worker_lives_{false};
  WorkerPlanes::MakeMemory make_plane_memory_;
  std::unique_ptr<KvStore> store_;
  MemoryDescriptors held_;
};

TEST_F(ArenaLeasesTest, MakingADataPlaneKeepsNobodyWaiting) {
  absl::Notification begun, go_on;
  make_plane_memory_ = [&](uint64_t bytes) {
    begun.Notify();
    go_on.WaitForNotification();
    return common::SealedMemory::Create("test plane", bytes, 1);
  };
  store_ = NewStore();
  store_->leases().SetArena(NewArena());
  absl::StatusOr<AttachResult> result;
  std::thread attaching([&] { result = store_->leases().Attach(Parameters()); });
  begun.WaitForNotification();
  EXPECT_EQ(store_->stats().arena_pages, kArenaPages);
  EXPECT_TRUE(store_->listing().List(0, 10).empty());
  EXPECT_EQ(store_->reservations().Release("token", 1, 1).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_FALSE(store_->leases().Tend(absl::Now()));
  go_on.Notify();
  attaching.join();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(store_->leases().ClaimDescriptors(result->token, 1).ok());
}

// A connection can break while its worker lives, in the middle of writing a segment.
TEST_F(ArenaLeasesTest, WhatTheWorkerOfAnExpiredLeaseMayWriteToIsNobodysUntilItsProcessIsGone) {
  const std::string first = AttachWorker();
  const auto extents =
      store_->reservations().Reserve(first, 1, ReserveRequest::Unnamed(1, {1024, 1024}));
  ASSERT_TRUE(extents.ok());
  const uint64_t pages = 2 * extents->extents[0].pages.count;
  worker_lives_ = true;
  store_->leases().EndLease(first, "its connection broke");
  EXPECT_EQ(store_->stats().withheld_pages, pages);
  EXPECT_EQ(store_->stats().free_pages, kArenaPages - pages);
  // Neither the next worker nor one with another geometry gets them.
  AttachParameters parameters = Parameters();
  for (const uint32_t num_layers : {2u, 1u}) {
    parameters.geometry.num_layers = num_layers;
    const auto next = store_->leases().Attach(parameters);
    ASSERT_TRUE(store_->leases().ClaimDescriptors(next->token, 1).ok());
    uint64_t sequence = 0;
    absl::StatusOr<Reservation> got;
    while ((got = store_->reservations().Reserve(next->token, sequence + 1,
                                                 ReserveRequest::Unnamed(sequence + 1, {1024})))
               .ok()) {
      ++sequence;
      const PageRun& run = got->extents[0].pages;
      for (const ExtentRecord& theirs : extents->extents) {
        EXPECT_TRUE(run.end() <= theirs.pages.first || run.first >= theirs.pages.end());
      }
    }
    EXPECT_EQ(common::ReasonOf(got.status()).reason, kWaitsForDiskReason);
    ASSERT_TRUE(store_->leases().Detach(next->token).ok());
    EXPECT_TRUE(store_->leases().Tend(absl::Now()));
  }
  EXPECT_EQ(store_->stats().free_pages, kArenaPages - pages);
  worker_lives_ = false;
  EXPECT_FALSE(store_->leases().Tend(absl::Now()));
  EXPECT_EQ(store_->stats().free_pages, kArenaPages);
  EXPECT_EQ(store_->stats().withheld_pages, 0u);
}

TEST_F(ArenaLeasesTest, AWorkerThatHandsItsMemoryBackHasItsPagesAgain) {
  const std::string token = AttachWorker();
  const auto extents = store_->reservations().Reserve(token, 1, ReserveRequest::Unnamed(1, {1024}));
  worker_lives_ = true;
  store_->leases().EndLease(token, "its connection broke");
  const auto again = HandBack(Parameters());
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_TRUE(store_->reservations().Declare(*again, 0, {{}, {{1, extents->extents}}}, true).ok());
  EXPECT_EQ(store_->stats().withheld_pages, 0u);
  EXPECT_EQ(store_->stats().reserved_extents, 1u);
  EXPECT_FALSE(store_->leases().Tend(absl::Now()));
}

TEST_F(ArenaLeasesTest, ADeclarationThatIsRefusedEndsThere) {
  const std::string token = AttachWorker();
  const auto extents =
      store_->reservations().Reserve(token, 1, ReserveRequest::Unnamed(1, {1024, 1024}));
  store_->leases().EndLease(token, "a connection that broke");
  const auto again = HandBack(Parameters());
  ASSERT_TRUE(again.ok()) << again.status();
  ASSERT_TRUE(
      store_->reservations().Declare(*again, 0, {{}, {{1, {extents->extents[0]}}}}, false).ok());
  EXPECT_EQ(
      store_->reservations().Declare(*again, 1, {{}, {{2, {extents->extents[0]}}}}, false).code(),
      absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store_->stats().sequences, 0u);
  EXPECT_EQ(store_->reservations().Declare(*again, 1, {}, true).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Reserve(*again, 1, 1), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ArenaLeasesTest, GivesDescriptorsOnceAndOnlyForTheToken) {
  const auto result = store_->leases().Attach(Parameters());
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->token.size(), kAttachTokenBytes);
  EXPECT_EQ(result->arena_bytes, kArenaBytes);
  std::string wrong = result->token;
  wrong[7] ^= 1;
  EXPECT_EQ(store_->leases().ClaimDescriptors(wrong, 1).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(store_->leases().ClaimDescriptors("", 1).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(Reserve(result->token, 1, 1), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(store_->leases().ClaimDescriptors(result->token, 1).ok());
  EXPECT_EQ(store_->leases().ClaimDescriptors(result->token, 1).status().code(),
            absl::StatusCode::kPermissionDenied);
  EXPECT_TRUE(store_->leases().HasLease(result->token));
  EXPECT_FALSE(store_->leases().HasLease(wrong));
}

TEST_F(ArenaLeasesTest, RefusesASecondWorkerUntilTheFirstIsGone) {
  const std::string token = AttachWorker();
  EXPECT_EQ(store_->leases().Attach(Parameters()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  store_->leases().EndLease("some other token", "test");
  EXPECT_TRUE(store_->leases().HasLease(token));
  store_->leases().EndLease(token, "test");
  EXPECT_NE(AttachWorker(), token);
}

TEST_F(ArenaLeasesTest, AnUnclaimedAttachmentIsReplacedOrExpires) {
  const auto first = store_->leases().Attach(Parameters());
  const auto second = store_->leases().Attach(Parameters());
  ASSERT_TRUE(second.ok());
  EXPECT_FALSE(store_->leases().ClaimDescriptors(first->token, 1).ok());
  store_->leases().Tend(absl::Now() + absl::Seconds(50));
  store_->leases().Tend(absl::Now() + absl::Seconds(200));
  EXPECT_FALSE(store_->leases().ClaimDescriptors(second->token, 1).ok());
  const std::string token = AttachWorker();
  store_->leases().Tend(absl::Now() + absl::Seconds(200));
  EXPECT_TRUE(store_->leases().HasLease(token));
}

TEST_F(ArenaLeasesTest, EndOfTheLeaseFreesEverything) {
  const std::string token = AttachWorker();
  EXPECT_EQ(Reserve(token, 1, 1), absl::StatusCode::kOk);
  EXPECT_EQ(Reserve(token, 2, 2), absl::StatusCode::kOk);
  EXPECT_LT(store_->stats().free_pages, kArenaPages);
  EXPECT_EQ(store_->listing().List(0, 10).size(), 2u);
  EXPECT_TRUE(store_->leases().Detach(token).ok());
  EXPECT_EQ(store_->leases().Detach(token).code(), absl::StatusCode::kPermissionDenied);
  const StoreStats stats = store_->stats();
  EXPECT_FALSE(stats.worker_attached);
  EXPECT_EQ(stats.free_pages, kArenaPages);
  EXPECT_EQ(stats.sequences + stats.reserved_extents, 0u);
  EXPECT_TRUE(store_->listing().List(0, 10).empty());
}

class NamedSegmentsTest : public ArenaLeasesTest {
 protected:
  // Attaches, computes a named segment and dies.
  void RunWorker(const std::vector<SegmentIdentity>& chain) {
    const std::string token = AttachWorker();
    const auto reservation = store_->reservations().Reserve(token, 1, NamedRequest(1, chain));
    ASSERT_TRUE(reservation.ok()) << reservation.status();
    auto arena = common::SealedMemory::Adopt(std::move(held_.arena), kArenaBytes);
    const PageRun pages = reservation->extents[0].pages;
    WriteSegment(
        arena->bytes().subspan(size_t{pages.first} * kPageBytes, size_t{pages.count} * kPageBytes),
        kTinyGeometry, 4, 1024);
    const std::vector<SegmentToCommit> segments = {{reservation->extents[0].id, 4, 1024, chain[0]}};
    ASSERT_TRUE(store_->reservations().Commit(token, 2, 1, segments).ok());
    ASSERT_TRUE(store_->reservations().Reserve(token, 3, ReserveRequest::Unnamed(2, {1024})).ok());
    store_->leases().EndLease(token, "test");
  }
  size_t NumCached(const AttachParameters& parameters, const std::vector<SegmentIdentity>& chain) {
    const auto attached = store_->leases().Attach(parameters);
    EXPECT_TRUE(store_->leases().ClaimDescriptors(attached->token, 1).ok());
    const auto reservation =
        store_->reservations().Reserve(attached->token, 1, NamedRequest(1, chain));
    EXPECT_TRUE(reservation.ok()) << reservation.status();
    store_->leases().EndLease(attached->token, "test");
    return reservation->num_cached;
  }
  const std::vector<SegmentIdentity> chain_ = NamedChain({1});
};

TEST_F(NamedSegmentsTest, ANewWorkerOfTheSameModelFindsThem) {
  RunWorker(chain_);
  const StoreStats stats = store_->stats();
  EXPECT_EQ(stats.named_segments, 1u);
  EXPECT_EQ(stats.sequences, 0u);
  EXPECT_EQ(stats.free_pages + stats.unreferenced_pages, kArenaPages);
  EXPECT_EQ(store_->listing().List(0, 10).size(), 1u);
  EXPECT_EQ(NumCached(Parameters(), chain_), 1u);
  EXPECT_EQ(NumCached(Parameters(), chain_), 1u);
  EXPECT_EQ(store_->stats().prefix.hits_tokens, 2048u);
}

TEST_F(NamedSegmentsTest, AnotherModelDoesNot) {
  RunWorker(chain_);
  AttachParameters other = Parameters();
  other.model_fingerprint = "other";
  EXPECT_EQ(NumCached(other, chain_), 0u);
  EXPECT_EQ(NumCached(Parameters(), chain_), 1u);
}

TEST_F(NamedSegmentsTest, AnotherGeometryEmptiesTheArena) {
  RunWorker(chain_);
  AttachParameters other = Parameters();
  other.geometry.num_layers = 1;
  EXPECT_EQ(NumCached(other, chain_), 0u);
  EXPECT_EQ(store_->stats().free_pages, kArenaPages);
  EXPECT_EQ(NumCached(Parameters(), chain_), 0u);
  EXPECT_EQ(store_->stats().prefix.queries_tokens, 3 * 1024u);  // over all of them
}

TEST_F(ArenaLeasesTest, RefusesCallsThatComeLate) {
  const std::string token = AttachWorker();
  EXPECT_EQ(Reserve(token, 5, 1), absl::StatusCode::kOk);
  EXPECT_TRUE(store_->reservations().Release(token, 6, 1).ok());
  EXPECT_EQ(Reserve(token, 5, 1), absl::StatusCode::kAborted);
  EXPECT_EQ(Reserve(token, 6, 2), absl::StatusCode::kAborted);
  EXPECT_EQ(store_->reservations().Commit(token, 1, 1, {}).status().code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(store_->reservations().Release(token, 0, 1).status().code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(store_->stats().free_pages, kArenaPages);
}

TEST_F(ArenaLeasesTest, RefusesParametersOutsideTheirLimits) {
  const auto refused = [&](auto change) {
    AttachParameters parameters = Parameters();
    change(parameters);
    EXPECT_EQ(store_->leases().Attach(parameters).status().code(),
              absl::StatusCode::kInvalidArgument);
  };
  refused([](auto& p) { p.geometry.head_dim = 96; });
  refused([](auto& p) { p.geometry.format.page_vector_bytes = 100; });
  refused([](auto& p) { p.model_fingerprint.clear(); });
  refused([](auto& p) { p.model_fingerprint.assign(65, 'x'); });
  refused([](auto& p) { p.log_capacity = 63; });
  refused([](auto& p) { p.request_capacity = UINT32_MAX; });
  refused([](auto& p) { p.num_slots = UINT32_MAX; });
}

TEST_F(ArenaLeasesTest, TakesNobodyBeforeItHasAnArena) {
  store_ = NewStore();
  EXPECT_EQ(store_->leases().Attach(Parameters()).status().code(), absl::StatusCode::kUnavailable);
  store_->leases().SetArena(NewArena());
  EXPECT_TRUE(store_->leases().Attach(Parameters()).ok());
}

TEST_F(ArenaLeasesTest, ANewStoreAdoptsTheMemoryOfALiveWorker) {
  std::string token = AttachWorker();
  const auto extents = store_->reservations().Reserve(token, 1, ReserveRequest::Unnamed(7, {1024}));
  ASSERT_TRUE(extents.ok());
  StateFile state(folder_.path() + "/state");
  const auto note = state.Read();
  ASSERT_TRUE(note.has_value());
  EXPECT_EQ(note->arena_bytes, kArenaBytes);

  store_ = NewStore();
  store_->leases().AwaitAdoption(*note);
  EXPECT_EQ(store_->leases().PollAdoption(absl::InfiniteFuture()), ArenaLeases::Adoption::kPending);
  EXPECT_EQ(store_->leases().Attach(Parameters()).status().code(), absl::StatusCode::kUnavailable);
  AttachParameters other = Parameters();
  other.model_fingerprint = "other";
  EXPECT_EQ(HandBack(other).status().code(), absl::StatusCode::kFailedPrecondition);
  const auto adopted = HandBack(Parameters());
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  EXPECT_EQ(store_->leases().PollAdoption(absl::InfiniteFuture()), ArenaLeases::Adoption::kAdopted);

  EXPECT_EQ(Reserve(*adopted, 1, 8), absl::StatusCode::kFailedPrecondition);
  const Declaration known = {{}, {{7, extents->extents}}};
  EXPECT_EQ(store_->reservations().Declare(*adopted, 1, known, true).code(),
            absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(store_->reservations().Declare(*adopted, 0, known, false).ok());
  EXPECT_EQ(Reserve(*adopted, 1, 8), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(store_->reservations().Declare(*adopted, 1, {}, true).ok());
  EXPECT_EQ(store_->reservations().Declare(*adopted, 2, {}, true).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(store_->stats().sequences, 1u);
  EXPECT_EQ(store_->stats().adoptions, 1u);
  EXPECT_EQ(Reserve(*adopted, 1, 8), absl::StatusCode::kOk);
  store_->leases().EndLease(*adopted, "test");
  EXPECT_EQ(store_->stats().arena_pages, kArenaPages);
  EXPECT_EQ(state.Read(), std::nullopt);
}

TEST_F(ArenaLeasesTest, ARunningStoreTakesItsOwnMemoryBack) {
  const std::string token = AttachWorker();
  store_->leases().EndLease(token, "a connection that broke");
  const auto again = HandBack(Parameters());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(store_->reservations().Declare(*again, 0, {}, true).ok());
  EXPECT_EQ(store_->stats().free_pages, kArenaPages);
}

TEST_F(ArenaLeasesTest, RefusesMemoryThatAnotherWorkerHasUsedSince) {
  store_->leases().EndLease(AttachWorker(), "a connection that broke");
  const MemoryDescriptors first = std::move(held_);
  auto memory =
      common::SealedMemory::Adopt(common::UniqueFd(::dup(first.data_planes[0].get())), 1 << 20);
  DataPlane plane = *DataPlane::Open(memory->bytes());
  EXPECT_EQ(plane.arena_taken(), 0u);
  const std::string second = AttachWorker();
  EXPECT_EQ(plane.arena_taken(), 1u);
  store_->leases().EndLease(second, "it died");
  held_ = CopyOf(first);
  EXPECT_EQ(HandBack(Parameters()).status().code(), absl::StatusCode::kFailedPrecondition);
  // Neither does a later store take it.
  store_ = NewStore();
  store_->leases().SetArena(NewArena());
  EXPECT_EQ(HandBack(Parameters()).status().code(), absl::StatusCode::kFailedPrecondition);
  AttachWorker();
}

TEST_F(ArenaLeasesTest, RefusesMemoryThatIsNotWhatWasDeclared) {
  const std::string token = AttachWorker();
  store_->leases().EndLease(token, "test");
  AttachParameters other = Parameters();
  other.num_slots = 17;
  EXPECT_EQ(HandBack(other).status().code(), absl::StatusCode::kInvalidArgument);
  std::swap(held_.arena, held_.data_planes[0]);
  EXPECT_EQ(HandBack(Parameters()).status().code(), absl::StatusCode::kInvalidArgument);
  std::swap(held_.arena, held_.data_planes[0]);
  held_.arena.Reset(::open("/dev/null", O_RDWR));
  EXPECT_EQ(HandBack(Parameters()).status().code(), absl::StatusCode::kInvalidArgument);
  // The store is as before.
  AttachWorker();
  EXPECT_EQ(store_->stats().arena_pages, kArenaPages);
}

TEST_F(ArenaLeasesTest, GivesUpWaitingInTimeOrForADeadWorker) {
  StateNote note{::getpid(), kArenaBytes, kTinyGeometry, "model"};
  store_ = NewStore();
  store_->leases().AwaitAdoption(note);
  EXPECT_EQ(store_->leases().PollAdoption(absl::Now() + absl::Seconds(10)),
            ArenaLeases::Adoption::kPending);
  EXPECT_EQ(store_->leases().PollAdoption(absl::Now()), ArenaLeases::Adoption::kGivenUp);
  store_->leases().SetArena(NewArena());
  EXPECT_TRUE(store_->leases().Attach(Parameters()).ok());

  note.worker_pid = 1 << 29;  // above any process id
  store_ = NewStore();
  store_->leases().AwaitAdoption(note);
  EXPECT_EQ(store_->leases().PollAdoption(absl::InfiniteFuture()), ArenaLeases::Adoption::kGivenUp);
}

// What the process of rank `rank` has mapped.
common::SealedMemory PlaneOf(const MemoryDescriptors& memory, size_t rank) {
  return *common::SealedMemory::Adopt(common::UniqueFd(::dup(memory.data_planes[rank].get())),
                                      1 << 20);
}

TEST_F(ArenaLeasesTest, AWorkerHasAPlaneForEachRank) {
  const std::string token = AttachWorker(ParametersOfRanks(3));
  ASSERT_EQ(held_.data_planes.size(), 3u);
  StoreStats stats = store_->stats();
  EXPECT_EQ(stats.planes.size(), 3u);
  EXPECT_EQ(stats.data_plane.num_slots, 48u);
  EXPECT_EQ(store_->leases().data_plane_rounds()->size(), 3u);
  std::vector<common::SealedMemory> memory;
  for (size_t rank = 0; rank < 3; ++rank) memory.push_back(PlaneOf(held_, rank));
  // Rank 1 admits pages until the store wants some of its slots back; rank 2 writes garbage.
  DataPlane full = *DataPlane::Open(memory[1].bytes());
  for (uint32_t slot = 0; slot < 16; ++slot) {
    ASSERT_TRUE(full.log().TryPush({uint32_t(LogKind::kAdmit), slot + 10, slot, 1}));
  }
  DataPlane broken = *DataPlane::Open(memory[2].bytes());
  ASSERT_TRUE(broken.log().TryPush({99, 1, 1, 0}));
  const auto requested = [&full] { return full.stamp_control().requested.value.load(); };
  while (requested() == 0) absl::SleepFor(absl::Milliseconds(1));
  full.worker_step() = 5;
  std::array<EvictionRequest, 1> request;
  while (*full.requests().Pop(std::span(request)) == 0) {
    full.stamp_control().published.value = requested();
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(request[0].page, request[0].slot + 10);
  ASSERT_TRUE(full.log().TryPush({uint32_t(LogKind::kEvict), request[0].page, request[0].slot, 6}));
  while (store_->stats().planes[1].evictions_applied == 0 ||
         store_->stats().planes[2].entries_refused == 0) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  stats = store_->stats();
  EXPECT_EQ(stats.planes[0].used_slots, 0u);
  EXPECT_EQ(stats.planes[0].requests_posted, 0u);
  EXPECT_EQ(stats.planes[2].requests_posted, 0u);
  EXPECT_EQ(stats.data_plane.used_slots, 15u);
  EXPECT_EQ(stats.data_plane.entries_replayed, 17u);
  EXPECT_EQ(stats.data_plane.entries_refused, 1u);
  store_->leases().EndLease(token, "test");
  stats = store_->stats();
  EXPECT_TRUE(stats.planes.empty());
  EXPECT_EQ(stats.data_plane.used_slots, 0u);
  EXPECT_EQ(stats.data_plane.entries_replayed, 17u);
}

TEST_F(ArenaLeasesTest, AllPlanesAreHandedBackAndAllAreToldThatTheArenaIsTaken) {
  const AttachParameters parameters = ParametersOfRanks(2);
  AttachWorker(parameters);
  const auto note = StateFile(folder_.path() + "/state").Read();
  ASSERT_TRUE(note.has_value());
  store_ = NewStore();
  store_->leases().AwaitAdoption(*note);
  EXPECT_EQ(HandBack(Parameters()).status().code(), absl::StatusCode::kInvalidArgument)
      << "two planes, one declared";
  const MemoryDescriptors whole = CopyOf(held_);
  held_.data_planes.pop_back();
  EXPECT_EQ(HandBack(parameters).status().code(), absl::StatusCode::kInvalidArgument);
  held_ = CopyOf(whole);
  held_.data_planes[1].Reset(::open("/dev/null", O_RDWR));
  EXPECT_EQ(HandBack(parameters).status().code(), absl::StatusCode::kInvalidArgument)
      << "one plane is none";
  held_ = CopyOf(whole);
  const auto adopted = HandBack(parameters);
  ASSERT_TRUE(adopted.ok()) << adopted.status();
  ASSERT_TRUE(store_->reservations().Declare(*adopted, 0, {}, true).ok());
  // Each plane is followed again from its reset on.
  for (size_t rank = 0; rank < 2; ++rank) {
    const common::SealedMemory memory = PlaneOf(held_, rank);
    DataPlane plane = *DataPlane::Open(memory.bytes());
    EXPECT_TRUE(plane.log().TryPush({uint32_t(LogKind::kReset), 0, 0, 0}));
    EXPECT_TRUE(plane.log().TryPush({uint32_t(LogKind::kAdmit), 4, static_cast<SlotId>(rank), 0}));
    while (store_->stats().planes[rank].used_slots == 0) absl::SleepFor(absl::Milliseconds(1));
  }
  store_->leases().EndLease(*adopted, "a connection that broke");
  AttachWorker();
  for (size_t rank = 0; rank < 2; ++rank) {
    const common::SealedMemory memory = PlaneOf(whole, rank);
    EXPECT_EQ(DataPlane::Open(memory.bytes())->arena_taken(), 1u) << rank;
  }
  EXPECT_EQ(store_->stats().planes.size(), 1u);
}

TEST_F(ArenaLeasesTest, PlanesAreBoundedInSum) {
  int num_made = 0;
  make_plane_memory_ = [&num_made](uint64_t) -> absl::StatusOr<common::SealedMemory> {
    ++num_made;
    return absl::ResourceExhaustedError("a test");
  };
  store_ = NewStore();
  store_->leases().SetArena(NewArena());
  for (const uint32_t num_planes : {0u, 17u, UINT32_MAX}) {
    EXPECT_EQ(store_->leases().Attach(ParametersOfRanks(num_planes)).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  AttachParameters large = ParametersOfRanks(5);
  large.num_slots = DataPlane::kSlotsMax;
  EXPECT_EQ(store_->leases().Attach(large).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(num_made, 0) << "nothing is made of what is refused";
  large.num_planes = 4;
  EXPECT_EQ(store_->leases().Attach(large).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(num_made, 1);
}

TEST_F(ArenaLeasesTest, CountsOverAllAttachments) {
  for (int i = 0; i < 2; ++i) {
    const std::string token = AttachWorker();
    auto memory = common::SealedMemory::Adopt(std::move(held_.data_planes[0]), 1 << 20);
    ASSERT_TRUE(memory.ok());
    auto plane = DataPlane::Open(memory->bytes());
    plane->log().TryPush({uint32_t(LogKind::kAdmit), 1, 1, 0});
    plane->log().TryPush({99, 1, 1, 0});
    while (store_->stats().data_plane.used_slots == 0) absl::SleepFor(absl::Milliseconds(1));
    store_->leases().EndLease(token, "test");
  }
  const StoreStats stats = store_->stats();
  EXPECT_EQ(stats.data_plane.entries_replayed, 2u);
  EXPECT_EQ(stats.data_plane.used_slots, 0u);
  EXPECT_EQ(stats.workers_attached, 2u);
}

}  // namespace
}  // namespace retroinfer::kvstore
