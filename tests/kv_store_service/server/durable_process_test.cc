// The disk tier of the real program: kills of both sides, damage, folders that cannot be used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>
#include <set>

#include "build_paths.h"
#include "retroinfer/kvstore/v1/contexts.grpc.pb.h"
#include "tests/kv_store_service/named_chain.h"
#include "tests/kv_store_service/random_seed.h"
#include "tests/kv_store_service/server/store_process_fixture.h"

namespace retroinfer::kvstore {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class DurableProcessTest : public StoreProcessTest {
 protected:
  ~DurableProcessTest() override {
    link_.reset();
    store_->Kill();
    std::filesystem::remove_all(cache_);
  }
  void Start(std::vector<std::string> extra = {}) {
    std::vector<std::string> arguments = {"--cache-dir", cache_, "--adopt-wait", "1s"};
    arguments.insert(arguments.end(), extra.begin(), extra.end());
    StartStore(arguments);
  }
  void Connect() {
    auto link = StoreLink::Connect(LinkOptions());
    ASSERT_TRUE(link.ok()) << link.status();
    link_ = *std::move(link);
  }
  // Both processes die; this one cannot, so its link goes while there is no store.
  void KillBoth() {
    store_->Kill();
    link_.reset();
    std::filesystem::remove(folder_ + "/kv_store.state");
  }
  std::byte* Mark(const Extent& extent) {
    return BytesOf(*link_, extent).data() + SegmentLayout(kTinyGeometry, 1024).centroids_offset;
  }
  // Computes what is not cached; checks what is. Returns how much was cached.
  size_t Run(const std::vector<SegmentIdentity>& chain) {
    const uint64_t sequence = ++sequence_;
    const auto extents = Reserve(*link_, NamedRequest(sequence, chain));
    if (!extents.ok()) {
      ADD_FAILURE() << extents.status();
      return 0;
    }
    size_t num_cached = 0;
    for (size_t i = 0; i < chain.size(); ++i) {
      const Extent& extent = (*extents)[i];
      const auto& name = chain[i].name.bytes;
      if (extent.cached) {
        ++num_cached;
        EXPECT_EQ(std::memcmp(Mark(extent), name.data(), name.size()), 0);
        continue;
      }
      const uint64_t begin = kSinkTokens + 1024 * i;
      WriteSegment(BytesOf(*link_, extent), kTinyGeometry, begin, 1024);
      std::memcpy(Mark(extent), name.data(), name.size());
      EXPECT_TRUE(Commit(*link_, sequence, {{extent.id, begin, chain[i]}}).ok());
    }
    link_->Release(sequence);
    return num_cached;
  }
  bool Written() {
    return Eventually([&] { return Stats().durable_queued_segments() == 0; });
  }

  const std::string cache_ = absl::StrCat("/tmp/rt_store_cache.", ::getpid());
  std::unique_ptr<StoreLink> link_;
  uint64_t sequence_ = 0;
};

TEST_F(DurableProcessTest, SegmentsSurviveTheDeathOfBoth) {
  Start();
  Connect();
  EXPECT_EQ(Run(NamedChain({1, 2, 3})), 0u);
  ASSERT_TRUE(Written());
  EXPECT_EQ(Stats().durable_segments(), 3u);
  std::set<std::string> listed;
  v1::ListDurableSegmentsRequest request;
  request.set_max_results(2);
  for (const int expected : {2, 1}) {
    v1::ListDurableSegmentsResponse response;
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->ListDurableSegments(&context, request, &response).ok());
    ASSERT_EQ(response.segments_size(), expected);
    EXPECT_EQ(response.next_after_name().empty(), expected == 1);
    for (const auto& segment : response.segments()) listed.insert(segment.name());
    EXPECT_EQ(response.segments(0).token_count(), 1024u);
    request.set_after_name(response.next_after_name());
  }
  std::set<std::string> names;
  for (const SegmentIdentity& identity : NamedChain({1, 2, 3})) {
    names.emplace(identity.name.view());
  }
  EXPECT_EQ(listed, names);
  for (int i = 0; i < 2; ++i) {
    KillBoth();
    Start();
    Connect();
    EXPECT_EQ(Run(NamedChain({1, 2, 3})), 3u);
    EXPECT_EQ(Stats().durable_restored_total(), 3u);
  }
  EXPECT_EQ(Run(NamedChain({1, 2}, 1024, "salt")), 0u);
}

// An acknowledged durable segment (it was seen on disk before the kill) is found afterwards.
TEST_F(DurableProcessTest, KillsAtRandomMomentsLoseNothingDurable) {
  std::mt19937_64 random(TestSeed());
  std::set<int32_t> durable;
  int32_t next = 1;
  Start();
  Connect();
  for (int kill = 0; kill < 5; ++kill) {
    for (const int32_t text : durable) EXPECT_EQ(Run(NamedChain({text})), 1u) << text;
    const int32_t first = next;
    for (uint64_t i = 0, n = 1 + random() % 4; i < n; ++i) Run(NamedChain({next++}));
    if (random() % 2 == 0) {
      ASSERT_TRUE(Written());
      for (int32_t text = first; text < next; ++text) durable.insert(text);
    }
    KillBoth();
    Start();
    Connect();
  }
  for (int32_t text = 1; text < next; ++text) {
    const size_t cached = Run(NamedChain({text}));
    EXPECT_TRUE(cached == 1 || !durable.contains(text)) << text;
  }
  EXPECT_EQ(Stats().durable_corrupt_total(), 0u);
}

TEST_F(DurableProcessTest, AStoreRestartWithALiveWorkerMixesNothingUp) {
  Start();
  Connect();
  for (int round = 0; round < 3; ++round) {
    for (int32_t text = 1; text <= 12; ++text) Run(NamedChain({text, 1 + text % 3}));
    store_->Kill();
    Start();
    ASSERT_TRUE(Eventually([&] {
      return link_->state() == StoreLink::State::kAttached &&
             link_->num_reattached() == uint64_t(round) + 1;
    }));
  }
  const v1::GetStatsResponse stats = Stats();
  EXPECT_EQ(stats.durable_corrupt_total(), 0u);
}

TEST_F(DurableProcessTest, ADiskThatCannotBeUsedEndsItUnlessThatIsAllowed) {
  std::filesystem::create_directory(cache_);
  std::ofstream(cache_ + "/db") << "not a folder";
  std::filesystem::permissions(cache_, std::filesystem::perms::owner_all);
  Start();
  const auto end = store_->Wait(absl::Seconds(60));
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(WEXITSTATUS(*end), 1);
  EXPECT_THAT(store_->Log(), AllOf(HasSubstr("--cache-dir cannot be used: "),
                                   HasSubstr("/db is a regular file, needs a folder"),
                                   HasSubstr("--cache-optional makes the service start")));
  Start({"--cache-optional"});
  Connect();
  EXPECT_FALSE(Stats().durable_tier());
  EXPECT_EQ(Run(NamedChain({1})), 0u);
  EXPECT_EQ(Run(NamedChain({1})), 1u);
}

// A restart must not make things worse for a worker that runs.
TEST_F(DurableProcessTest, ARestartUnderALiveWorkerGoesOnWithoutADiskItCannotUse) {
  Start();
  Connect();
  EXPECT_EQ(Run(NamedChain({1})), 0u);
  store_->Kill();
  std::filesystem::remove(cache_ + "/FORMAT");
  std::filesystem::create_directory(cache_ + "/FORMAT");
  Start();
  ASSERT_TRUE(Eventually([&] { return link_->num_reattached() == 1; }));
  EXPECT_FALSE(Stats().durable_tier());
  EXPECT_EQ(Run(NamedChain({2})), 0u);
  EXPECT_THAT(store_->Log(), HasSubstr("FORMAT is a folder, needs a regular file"));
}

TEST_F(DurableProcessTest, ASecondStoreOnTheFolderIsRefused) {
  Start();
  EXPECT_TRUE(Stats().durable_tier());
  const std::string other = folder_ + ".2";
  ChildProcess second(
      {absl::StrCat(RETROINFER_BINARY_DIR, "/bin/kv_store_service"), "--socket-dir", other,
       "--arena-bytes", "16MiB", "--metrics-address", "", "--cache-dir", cache_},
      log_path_);
  const auto end = second.Wait(absl::Seconds(60));
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(WEXITSTATUS(*end), 1);
  EXPECT_THAT(second.Log(), HasSubstr(absl::StrCat("is in use by process ", store_->pid())));
  std::filesystem::remove_all(other);
}

// A store that is killed in whatever phase of its start leaves a folder that the next one uses, and
// a signal ends it in any of them.
TEST_F(DurableProcessTest, AStartMayEndAtAnyTime) {
  std::mt19937_64 random(TestSeed());
  Start();
  Connect();
  EXPECT_EQ(Run(NamedChain({1})), 0u);
  ASSERT_TRUE(Written());
  for (int i = 0; i < 24; ++i) {
    KillBoth();
    Start();
    absl::SleepFor(absl::Microseconds(random() % (i < 12 ? 5'000 : 80'000)));
    if (i % 2 == 0) continue;  // KillBoth()
    store_->Signal(SIGTERM);
    const auto end = store_->Wait(absl::Seconds(60));
    ASSERT_TRUE(end.has_value());
    // Before it blocks the signal, that ends it the usual way.
    EXPECT_TRUE(WIFSIGNALED(*end) || WEXITSTATUS(*end) == 0) << store_->Log();
  }
  KillBoth();
  Start();
  Connect();
  EXPECT_EQ(Run(NamedChain({1})), 1u);
  EXPECT_EQ(Stats().durable_corrupt_total(), 0u);
}

TEST_F(DurableProcessTest, SigtermClosesTheDiskWhateverCallsStillRun) {
  Start();
  Connect();
  const std::vector<SegmentIdentity> chain = NamedChain({1, 2, 3, 4, 5, 6});
  Run(chain);
  ASSERT_TRUE(Written());
  const auto contexts = v1::ContextStoreService::NewStub(channel_);
  v1::SaveContextRequest save;
  save.set_name("book");
  const common::Hash256 tenant = common::SaltHash("");
  save.set_salt_hash(std::string(tenant.view()));
  save.set_root(std::string(common::RootName("model", tenant, kSegmentVersion).view()));
  for (uint32_t i = 0; i < kSinkTokens; ++i) save.add_sink_token_ids(1);
  for (const auto& segment : chain) save.add_segments(std::string(segment.name.view()));
  save.set_num_tokens(kSinkTokens + 1024 * chain.size());
  v1::SaveContextResponse saved;
  grpc::ClientContext save_call, whole_call, slow_call, silent_call;
  ASSERT_TRUE(contexts->SaveContext(&save_call, save, &saved).ok());
  ASSERT_TRUE(saved.has_saved());
  v1::ExportContextRequest name;
  name.set_name("book");
  name.set_salt_hash(save.salt_hash());
  v1::ExportContextResponse part;
  const auto whole = contexts->ExportContext(&whole_call, name);
  while (whole->Read(&part)) continue;
  EXPECT_TRUE(whole->Finish().ok());
  const auto slow = contexts->ExportContext(&slow_call, name);  // is not read on
  EXPECT_TRUE(slow->Read(&part));
  v1::ImportContextResponse imported;
  const auto silent = contexts->ImportContext(&silent_call, &imported);  // does not end
  v1::ImportContextRequest beginning;
  beginning.set_salt_hash(save.salt_hash());
  beginning.set_root(save.root());
  EXPECT_TRUE(silent->Write(beginning));

  store_->Signal(SIGTERM);
  const auto end = store_->Wait(absl::Seconds(60));
  ASSERT_TRUE(end.has_value());
  EXPECT_TRUE(WIFEXITED(*end) && WEXITSTATUS(*end) == 0);
  EXPECT_THAT(store_->Log(), Not(HasSubstr("the disk does not answer")));
  EXPECT_TRUE(std::filesystem::exists(cache_ + "/CLEAN"));
  slow_call.TryCancel();
  silent_call.TryCancel();
}

TEST_F(DurableProcessTest, OffMeansOff) {
  Start({"--persist", "off"});
  EXPECT_FALSE(Stats().durable_tier());
  EXPECT_FALSE(std::filesystem::exists(cache_));
}

}  // namespace
}  // namespace retroinfer::kvstore
