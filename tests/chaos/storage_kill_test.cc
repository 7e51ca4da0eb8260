// Kills a process that writes durable segments and looks at what it leaves behind.
//
// The writer is this program, started again. It reports every operation on a pipe before it begins
// and after it was acknowledged; that list is what the store is compared with.
// RETROINFER_CHAOS_ROUNDS: kills at random moments (default 20). RETROINFER_CHAOS_SEED: of them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>

#include "absl/time/clock.h"
#include "kv_store_service/persistence/rocksdb_segment_storage.h"
#include "tests/kv_store_service/persistence/sample_segments.h"
#include "tests/support/storage/crash_point.h"

namespace retroinfer::kvstore {
namespace {

using testing::CheckSample;
using testing::MakeSample;
using testing::PutSample;
using testing::TempFolder;

constexpr size_t kImageBytes = 300'000;
constexpr int kReportFd = 9;

int EnvInt(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
}

RocksDbStorageOptions Options(const std::string& folder) {
  RocksDbStorageOptions options;
  options.folder = folder;
  options.reserve_bytes = 0;
  options.chunk_bytes = 16384;
  options.write_buffer_bytes = 1 << 20;
  return options;
}

void Report(char what, uint64_t seed) {
  char line[32];
  const int size =
      std::snprintf(line, sizeof(line), "%c %llu\n", what, static_cast<unsigned long long>(seed));
  if (write(kReportFd, line, size) != size) _exit(3);
}

// The writer. Puts segments, and deletes every third one, until it is killed or 12 are put.
TEST(StorageKillWriter, DISABLED_Writer) {
  RocksDbStorageOptions options = Options(std::getenv("STORE_FOLDER"));
  const std::string crash_point = std::getenv("STORE_CRASH_POINT");
  if (!crash_point.empty()) options.on_stage = *ParseCrashPoint(crash_point);
  auto storage = OpenRocksDbSegmentStorage(options);
  if (!storage.ok()) {
    std::fprintf(stderr, "%s\n", storage.status().ToString().c_str());
    _exit(4);
  }
  const uint64_t first = EnvInt("STORE_FIRST_SEED", 0);
  Report('o', 0);
  for (uint64_t seed = first; seed < first + 12; ++seed) {
    Report('p', seed);
    if (!PutSample(**storage, MakeSample(seed, kImageBytes)).ok()) _exit(5);
    Report('P', seed);
    if (seed % 3 != 2) continue;
    const SegmentName name = MakeSample(seed - 1, kImageBytes).name();
    Report('d', seed - 1);
    if (!(*storage)->Delete({&name, 1}).ok()) _exit(6);
    Report('D', seed - 1);
  }
  _exit(0);  // without closing, as if killed
}

enum class Expect { kPresent, kAbsent, kEither };

class StorageKillTest : public ::testing::Test {
 protected:
  // Runs a writer; kills it `after` it has opened the store, if that is not negative. Returns
  // whether it was killed.
  bool RunWriter(const std::string& crash_point, absl::Duration after) {
    int pipe_fds[2];
    EXPECT_EQ(pipe2(pipe_fds, O_CLOEXEC), 0);
    setenv("STORE_FOLDER", folder_.path().c_str(), 1);
    setenv("STORE_CRASH_POINT", crash_point.c_str(), 1);
    setenv("STORE_FIRST_SEED", std::to_string(next_seed_).c_str(), 1);
    next_seed_ += 12;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipe_fds[1], kReportFd);
    posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
    std::string program = "/proc/self/exe", filter = "--gtest_filter=*DISABLED_Writer",
                disabled = "--gtest_also_run_disabled_tests";
    char* args[] = {program.data(), filter.data(), disabled.data(), nullptr};
    pid_t pid;
    EXPECT_EQ(posix_spawn(&pid, program.c_str(), &actions, nullptr, args, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(pipe_fds[1]);
    FILE* reports = fdopen(pipe_fds[0], "r");
    char what;
    unsigned long long seed;
    while (std::fscanf(reports, " %c %llu", &what, &seed) == 2) {
      if (what == 'o' && after >= absl::ZeroDuration()) {
        absl::SleepFor(after);
        kill(pid, SIGKILL);
      }
      Note(what, seed);
    }
    std::fclose(reports);
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << WEXITSTATUS(status);
    return WIFSIGNALED(status);
  }

  void Note(char what, uint64_t seed) {
    if (what == 'p' || what == 'd') expected_[seed] = Expect::kEither;
    if (what == 'P') expected_[seed] = Expect::kPresent;
    if (what == 'D') expected_[seed] = Expect::kAbsent;
  }

  // Opens the store and compares it with the list. Returns the orphans that were removed.
  uint64_t CheckStore() {
    auto storage = OpenRocksDbSegmentStorage(Options(folder_.path()));
    EXPECT_TRUE(storage.ok()) << storage.status();
    uint64_t present = 0;
    for (auto& [seed, expect] : expected_) {
      const absl::Status status = CheckSample(**storage, MakeSample(seed, kImageBytes));
      if (expect == Expect::kPresent) {
        EXPECT_TRUE(status.ok()) << seed << status;
      } else if (expect == Expect::kAbsent) {
        EXPECT_TRUE(absl::IsNotFound(status)) << seed << status;
      } else {
        EXPECT_TRUE(status.ok() || absl::IsNotFound(status)) << seed << status;
      }
      expect = status.ok() ? Expect::kPresent : Expect::kAbsent;
      present += status.ok() ? 1 : 0;
    }
    const StorageStats stats = (*storage)->Stats();
    EXPECT_EQ(stats.segments, present);
    EXPECT_EQ(stats.corrupt_total, 0u);
    EXPECT_EQ(stats.damaged_stores_total, 0u);
    // No payload is left that nobody owns.
    EXPECT_LE(stats.physical_bytes, present * (kImageBytes + 50'000) + 1'000'000);
    return stats.orphans_removed_total;
  }

  TempFolder folder_;
  uint64_t next_seed_ = 0;
  std::map<uint64_t, Expect> expected_;
};

TEST_F(StorageKillTest, AtEveryStage) {
  for (const char* stage :
       {"put-begun", "put-half-payload", "put-payload", "put-committed", "delete-committed"}) {
    for (int nth : {1, 3}) {
      SCOPED_TRACE(std::string(stage) + ":" + std::to_string(nth));
      EXPECT_TRUE(RunWriter(std::string(stage) + ":" + std::to_string(nth), -absl::Seconds(1)));
      const uint64_t orphans = CheckStore();
      EXPECT_EQ(orphans, std::string(stage) == "put-committed" ? 0u : 1u);
    }
  }
}

TEST_F(StorageKillTest, AtRandomMoments) {
  const int rounds = EnvInt("RETROINFER_CHAOS_ROUNDS", 20);
  const int seed = EnvInt("RETROINFER_CHAOS_SEED", 1);
  std::printf("seed %d\n", seed);
  std::mt19937 random(seed);
  int killed = 0;
  for (int round = 0; round < rounds; ++round) {
    SCOPED_TRACE(round);
    killed += RunWriter("", absl::Microseconds(random() % 300'000)) ? 1 : 0;
    CheckStore();
  }
  std::printf("%d of %d writers were killed\n", killed, rounds);
  EXPECT_GT(killed, 0);
}

}  // namespace
}  // namespace retroinfer::kvstore
