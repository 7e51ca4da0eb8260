// Disks that are full, broken, slow, stuck, read-only or not this store's: the services go on
// without that tier, say so, and lose nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "build_paths.h"
#include "tests/integration/generate_stream.h"
#include "tests/integration/service_processes.h"

namespace retroinfer::test_support {
namespace {

namespace v1 = generation::v1;
using testing::HasSubstr;

constexpr int32_t kOutput = 20;
constexpr int64_t kCached = 46 * 64;  // of a prompt of 3000 tokens: two segments and 14 blocks
constexpr size_t kRecords = 17;       // that it leaves: those, and a piece of a block

class DurableFaultsTest : public testing::Test {
 protected:
  DurableFaultsTest() : processes_(Options()) {
    cache_ = processes_.folder() / "cache";
    faults_ = processes_.folder() / "faults";
    processes_.options().store_arguments = {"--cache-dir", cache_.string()};
  }
  ~DurableFaultsTest() override {
    if (HasFailure()) std::fprintf(stderr, "%s\n", StoreLog().c_str());
  }
  static ServiceOptions Options() {
    ServiceOptions options;
    options.arena_bytes = "128MiB";
    options.worker_arguments = {"--dense-below", "1024", "--dense-kv-bytes", "64MiB"};
    return options;
  }
  // Starts both with a disk that SetFaults() spoils.
  void StartWithFaults() {
    processes_.options().store_program = {
        "/usr/bin/env", "RETROINFER_DISK_FAULTS=" + faults_.string(),
        RETROINFER_BINARY_DIR "/tests/bin/faulty_kv_store_service"};
    processes_.StartBoth();
    Learn();
  }
  void SetFaults(const std::string& faults) {
    const std::string next = faults_.string() + ".next";
    std::ofstream(next) << faults;
    std::filesystem::rename(next, faults_);
    absl::SleepFor(absl::Milliseconds(100));
  }
  // Restarts both, so that the arena is empty.
  void Restart() {
    processes_.worker().Kill();
    processes_.store().Kill();
    processes_.StartBoth();
  }

  // Computes the right answers, under a salt of their own and without writing them.
  void Learn() {
    for (uint64_t prompt = 0; prompt < 3; ++prompt) {
      answers_.push_back(Generate(processes_.worker_stub(), Request(prompt, "cold")));
      ASSERT_EQ(answers_.back().size(), size_t{kOutput});
    }
    WaitUntilWritten();
    before_ = processes_.StoreStats();
  }
  static v1::GenerateRequest Request(uint64_t prompt, const std::string& salt) {
    v1::GenerateRequest request = SampledRequest(RandomTokens(3000, prompt), kOutput, 7);
    if (prompt % 2 == 0) request.mutable_sampling()->set_temperature(0);
    request.set_cache_salt(salt);
    return request;
  }
  // Runs a request whose answer is known. Returns how much of it was cached.
  int64_t Run(uint64_t prompt, const std::string& salt) {
    GenerateStream stream(processes_.worker_stub(), Request(prompt, salt));
    EXPECT_TRUE(stream.Wait().ok()) << stream.Wait().error_message();
    EXPECT_EQ(stream.tokens(), answers_[prompt]);
    return stream.finished().cached_tokens();
  }
  // A segment may be committed after its request was answered, but before the store lets go of it.
  void WaitUntilWritten() {
    EXPECT_EQ(processes_.WaitUntilNothingIsHeld(absl::Minutes(1)), "");
    EXPECT_TRUE(Eventually([&] { return processes_.StoreStats().durable_queued_segments() == 0; },
                           absl::Minutes(1)));
  }
  // Whether the store still waits before it tries a disk that failed again.
  bool IsLeftAlone() {
    return processes_.StoreMetrics().find("retroinfer_durable_degraded 0\n") == std::string::npos;
  }
  size_t NumDurable() {
    const auto names = DurableNames(*processes_.NewStoreStub());
    EXPECT_TRUE(names.has_value());
    return names.has_value() ? names->size() : 0;
  }
  std::string StoreLog() { return processes_.LogOf("store"); }

  ServiceProcesses processes_;
  std::filesystem::path cache_;
  std::filesystem::path faults_;
  std::vector<std::vector<int32_t>> answers_;
  kvstore::v1::GetStatsResponse before_;
};

TEST_F(DurableFaultsTest, AFullOrBrokenDiskWritesNothingAndServesOn) {
  StartWithFaults();
  for (const char* fault : {"full", "write-errors"}) {
    SCOPED_TRACE(fault);
    const size_t durable = NumDurable();
    SetFaults(fault);
    EXPECT_EQ(Run(1, fault), 0);
    WaitUntilWritten();
    EXPECT_EQ(Run(1, fault), kCached);  // in the arena
    EXPECT_EQ(NumDurable(), durable);
    EXPECT_TRUE(processes_.StoreStats().durable_tier());
    EXPECT_EQ(processes_.WaitUntilNothingIsHeld(), "");
    SetFaults("");
    EXPECT_TRUE(Eventually([&] { return !IsLeftAlone(); }, absl::Minutes(1)));
    EXPECT_EQ(Run(2, fault), 0);
    // What stayed in the arena while the disk failed is written as well.
    EXPECT_TRUE(
        Eventually([&] { return NumDurable() == durable + 2 * kRecords; }, absl::Minutes(2)))
        << NumDurable() << " of " << durable + 2 * kRecords << "; "
        << processes_.StoreStats().DebugString();
    WaitUntilWritten();
  }
  Restart();
  EXPECT_EQ(Run(2, "full"), kCached);
  EXPECT_EQ(Run(1, "full"), kCached);
  EXPECT_EQ(processes_.StoreStats().durable_corrupt_total(), 0u);
}

TEST_F(DurableFaultsTest, ADiskThatCannotBeReadCostsTimeAndNothingElse) {
  StartWithFaults();
  EXPECT_EQ(Run(1, "tenant"), 0);
  WaitUntilWritten();
  const size_t durable = NumDurable();
  SetFaults("read-errors");
  Restart();
  EXPECT_EQ(Run(1, "tenant"), 0);
  EXPECT_GE(processes_.StoreStats().durable_restore_failures_total(), 1u);
  EXPECT_EQ(NumDurable(), durable);  // an error of the disk is no damage
  EXPECT_EQ(processes_.StoreStats().durable_corrupt_total(), 0u);
  EXPECT_EQ(processes_.WaitUntilNothingIsHeld(), "");
  SetFaults("");
  Restart();
  EXPECT_EQ(Run(1, "tenant"), kCached);
}

TEST_F(DurableFaultsTest, ASlowDiskIsWaitedForAndAStuckOneIsNot) {
  StartWithFaults();
  SetFaults("slow");
  EXPECT_EQ(Run(1, "tenant"), 0);
  WaitUntilWritten();
  Restart();
  EXPECT_EQ(Run(1, "tenant"), kCached);
  SetFaults("stuck");
  Restart();
  // The disk stays stuck until it is told otherwise: that these end shows that nobody waits for it
  // for ever.
  EXPECT_EQ(Run(1, "tenant"), 0);
  EXPECT_EQ(Run(2, "tenant"), 0);
  EXPECT_EQ(Run(2, "tenant"), kCached);
  ASSERT_GT(processes_.StoreStats().durable_queued_segments(), 0u);
  processes_.store().Signal(SIGTERM);
  EXPECT_TRUE(processes_.store().Wait(absl::Minutes(1)).has_value());
  EXPECT_THAT(StoreLog(), HasSubstr("the disk does not answer, ending without it"));
  SetFaults("");
  processes_.StartStore();
  EXPECT_TRUE(Eventually([&] { return processes_.WorkerIsServing(); }));
  EXPECT_EQ(Run(1, "tenant"), kCached);
}

TEST_F(DurableFaultsTest, SigtermSaysWhatWasNotWritten) {
  processes_.options().arena_bytes = "1GiB";
  StartWithFaults();
  // Nothing is written, however long the requests take; then too slowly for the time there is.
  SetFaults("stuck");
  for (int i = 0; i < 5; ++i) Run(1, absl::StrCat("tenant ", i));
  ASSERT_TRUE(Eventually([&] {
    return processes_.StoreStats().durable_queued_segments() == 5 * kRecords;
  })) << processes_.StoreStats().DebugString();
  SetFaults("slow");
  processes_.store().Signal(SIGTERM);
  EXPECT_TRUE(processes_.store().Wait(absl::Seconds(10)).has_value());
  EXPECT_THAT(StoreLog(), HasSubstr("bytes) not written; they will be computed afresh"));
}

// Folders that cannot be used at all: there is no tier, everything else works.
class UnusableFolderTest : public DurableFaultsTest {
 protected:
  // First that the service does not start without being told that it may.
  void ExpectServiceWithout(const std::string& reason) {
    processes_.LaunchStore();
    const auto end = processes_.store().Wait(absl::Seconds(60));
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(WEXITSTATUS(*end), 1);
    EXPECT_THAT(StoreLog(), HasSubstr("--cache-dir cannot be used: "));
    processes_.options().store_arguments.push_back("--cache-optional");
    processes_.StartBoth();
    answers_ = {{}, Generate(processes_.worker_stub(), Request(1, "cold"))};
    EXPECT_FALSE(processes_.StoreStats().durable_tier());
    EXPECT_FALSE(DurableNames(*processes_.NewStoreStub()).has_value());
    EXPECT_EQ(Run(1, ""), 0);
    EXPECT_EQ(Run(1, ""), kCached);
    EXPECT_EQ(processes_.WaitUntilNothingIsHeld(), "");
    EXPECT_THAT(StoreLog(), HasSubstr("no durable segments, the service goes on without them"));
    EXPECT_THAT(StoreLog(), HasSubstr(reason));
  }
};

TEST_F(UnusableFolderTest, OfANewerFormat) {
  processes_.StartBoth();
  Learn();
  EXPECT_EQ(Run(1, "tenant"), 0);
  // An answer may be complete before its last segment is: only then is nothing left to be queued.
  EXPECT_EQ(processes_.WaitUntilNothingIsHeld(absl::Minutes(1)), "");
  WaitUntilWritten();
  processes_.worker().Kill();
  processes_.store().Kill();
  const std::string format = cache_ / "FORMAT";
  std::filesystem::copy(format, format + ".old");
  // What version 9 would write, with its checksum.
  std::ofstream(format) << "retroinfer durable segments\nversion 9\ncrc32c 83fd265d\n";
  ExpectServiceWithout("has format 9, this version knows formats up to 2");
  // Nothing in it was touched.
  std::filesystem::rename(format + ".old", format);
  Restart();
  EXPECT_EQ(Run(1, "tenant"), kCached);
}

TEST_F(UnusableFolderTest, InUseByAnotherStore) {
  ServiceProcesses other(Options());
  other.options().store_arguments = {"--cache-dir", cache_.string()};
  other.StartStore();
  ExpectServiceWithout(
      absl::StrCat("is in use by process ", other.store().pid(), ": stop it, or give each"));
  EXPECT_TRUE(other.StoreStats().durable_tier());
}

TEST_F(UnusableFolderTest, ThatIsAFile) {
  std::ofstream(cache_) << "not a folder";
  ExpectServiceWithout("Not a directory");
}

// A file system of its own needs the right to mount in a new namespace.
class SmallDiskTest : public UnusableFolderTest {
 protected:
  // Returns false if that cannot be done here.
  bool MountFor(const std::string& options, const std::string& before_start) {
    const std::string mount =
        absl::StrCat("mount -t tmpfs -o ", options, " tmpfs ", cache_.string());
    std::filesystem::create_directory(cache_);
    if (std::system(absl::StrCat("unshare -rm sh -c '", mount, "' 2>/dev/null").c_str()) != 0) {
      return false;
    }
    processes_.options().store_program = {
        "/usr/bin/unshare",
        "-rm",
        "/bin/sh",
        "-c",
        absl::StrCat(mount, " && ", before_start, " && exec \"$0\" \"$@\""),
        RETROINFER_BINARY_DIR "/bin/kv_store_service"};
    return true;
  }
};

TEST_F(SmallDiskTest, ThatIsFull) {
  if (!MountFor("size=320m,mode=700", "true")) GTEST_SKIP() << "no right to mount";
  processes_.StartBoth();
  answers_ = {{}, Generate(processes_.worker_stub(), Request(1, "cold"))};
  // 64 MiB can be taken before the reserve of 256 MiB.
  for (int i = 0; i < 12; ++i) {
    EXPECT_EQ(Run(1, absl::StrCat("tenant ", i)), 0);
    WaitUntilWritten();
  }
  const kvstore::v1::GetStatsResponse stats = processes_.StoreStats();
  EXPECT_GT(stats.durable_segments(), 2 * kRecords);
  EXPECT_LT(stats.durable_segments(), 8 * kRecords);
  EXPECT_TRUE(stats.durable_tier());
  EXPECT_EQ(Run(1, "tenant 11"), kCached);
  EXPECT_EQ(Run(1, "tenant 0"), kCached);  // from the disk, if the arena gave it up
  EXPECT_EQ(processes_.WaitUntilNothingIsHeld(), "");
}

// With a database on it: the store of before was killed, then somebody filled the disk.
TEST_F(SmallDiskTest, ThatIsFullAtARestart) {
  const std::string cache = cache_.string();
  const std::string socket = (processes_.folder() / "kv_store_fd.sock").string();
  const std::string fill =
      absl::StrCat("{ \"$0\" \"$@\" & } && while [ ! -S ", socket,
                   " ]; do sleep 0.05; done && kill -9 $! && ", "rm ", socket, " && [ -s ", cache,
                   "/db/CURRENT ] && ! dd if=/dev/zero of=", cache, "/filler bs=4096 2> /dev/null");
  if (!MountFor("size=16m,mode=700", fill)) GTEST_SKIP() << "no right to mount";
  processes_.StartBoth();
  EXPECT_FALSE(processes_.StoreStats().durable_tier());
  EXPECT_THAT(StoreLog(), HasSubstr("no durable segments, the service goes on without them"));
  EXPECT_THAT(StoreLog(), HasSubstr("no room to open the database"));
  answers_ = {{}, Generate(processes_.worker_stub(), Request(1, "cold"))};
  EXPECT_EQ(Run(1, ""), 0);
  EXPECT_EQ(Run(1, ""), kCached);
}

TEST_F(SmallDiskTest, ThatIsReadOnly) {
  if (!MountFor("size=16m,mode=700", absl::StrCat("mount -o remount,ro ", cache_.string()))) {
    GTEST_SKIP() << "no right to mount";
  }
  ExpectServiceWithout("Read-only file system");
}

}  // namespace
}  // namespace retroinfer::test_support
