// A disk that others fill and empty while the RocksDB storage works on it, and while it is opened.
//
// RocksDB ends the process where it meets a full disk at the wrong moment, so each run is a process
// of its own. RETROINFER_FULL_DISK_RUNS: more of them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <deque>
#include <filesystem>
#include <map>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/shm/unique_fd.h"
#include "kv_store_service/persistence/rocksdb_segment_storage.h"
#include "tests/kv_store_service/persistence/sample_segments.h"
#include "tests/kv_store_service/random_seed.h"

namespace retroinfer::kvstore {
namespace {

using testing::CheckSample;
using testing::MakeSample;
using testing::PutSample;
using testing::Sample;
using testing::TempFolder;

// A small file system that is gone when the descriptor is closed.
common::UniqueFd SmallFileSystem(const char* size) {
  TempFolder mount_point;
  std::filesystem::create_directory(mount_point.path());
  if (mount("tmpfs", mount_point.path().c_str(), "tmpfs", 0, size) != 0) return {};
  common::UniqueFd root(open(mount_point.path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  umount2(mount_point.path().c_str(), MNT_DETACH);
  return root;
}

class FullDiskRun {
 public:
  FullDiskRun(const common::UniqueFd& root, uint64_t seed)
      : root_(absl::StrCat("/proc/self/fd/", root.get())),
        random_(seed),
        filler_(open((root_ + "/filler").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)) {}

  // Returns what went wrong; empty: nothing.
  std::string Go() {
    if (!Open()) return "a new storage cannot be opened";
    for (int step = 0; step < 60; ++step) {
      std::string wrong = Step();
      if (!wrong.empty()) return wrong;
    }
    Empty();
    if (!storage_ && !Open()) return "an empty disk cannot be opened: " + error_.ToString();
    const Sample last = MakeSample(9999, 50'000);
    for (int i = 0; i < 300 && !(error_ = PutSample(*storage_, last)).ok(); ++i) {
      absl::SleepFor(absl::Milliseconds(20));
    }
    if (!error_.ok()) return "an empty disk is not written: " + error_.ToString();
    for (int reopened = 0; reopened < 2; ++reopened) {
      for (const auto& [number, sample] : durable_) {
        const absl::Status status = CheckSample(*storage_, sample);
        if (!status.ok()) return absl::StrCat("segment ", number, " is lost: ", status.ToString());
      }
      if (storage_->Stats().corrupt_total > 0) return "something was found corrupt";
      storage_.reset();
      if (!Open()) return "it cannot be opened again: " + error_.ToString();
    }
    return "";
  }

 private:
  bool Open() {
    RocksDbStorageOptions options;
    options.folder = root_ + "/store";
    options.reserve_bytes = 0;
    options.write_buffer_bytes = 1 << 20;
    options.chunk_bytes = 4096;
    auto storage = OpenRocksDbSegmentStorage(options);
    error_ = storage.status();
    if (storage.ok()) storage_ = *std::move(storage);
    return storage.ok();
  }
  void Empty() { (void)!ftruncate(filler_.get(), 0); }
  void Fill(uint64_t left) {
    struct statvfs info {};
    if (fstatvfs(filler_.get(), &info) != 0) return;
    const uint64_t free_bytes = info.f_bavail * info.f_frsize;
    if (free_bytes <= left) return;
    const off_t size = lseek(filler_.get(), 0, SEEK_END);
    (void)posix_fallocate(filler_.get(), size, static_cast<off_t>(free_bytes - left));
  }
  std::string Step() {
    const uint64_t kind = random_() % 10;
    if (kind < 2) {
      Empty();
      Fill((random_() % 5) * (random_() % 5) * 40'000);
      return "";
    }
    if (kind == 2) Empty();
    if (kind == 3 || !storage_) {
      storage_.reset();
      if (Open() || absl::IsResourceExhausted(error_)) return "";
      return "opening says " + error_.ToString();
    }
    if (kind == 4 && !durable_.empty()) {
      const auto victim = std::next(durable_.begin(), random_() % durable_.size());
      const SegmentName name = victim->second.name();
      durable_.erase(victim);  // whatever comes of it
      storage_->Delete({&name, 1}).status().IgnoreError();
      return "";
    }
    if (kind == 5) {
      for (const auto& [number, sample] : durable_) {
        storage_->Touch({&sample.name(), 1}, testing::At(100 + next_));
      }
      storage_->FlushTouches().IgnoreError();
      return "";
    }
    if (kind == 6 && !durable_.empty()) {
      ContextRecord context;
      context.context_name = absl::StrCat("name ", random_() % 3);
      context.segments = {durable_.begin()->second.name()};
      storage_->PutContext(context).IgnoreError();
      if (random_() % 2 == 0) {
        storage_->DeleteContext(context.salt_hash, context.context_name).IgnoreError();
      }
      return "";
    }
    if (durable_.size() > 6) return "";
    const Sample sample = MakeSample(++next_, 20'000 + random_() % 1'200'000);
    if (PutSample(*storage_, sample).ok()) durable_[next_] = sample;
    return "";
  }

  const std::string root_;
  std::mt19937_64 random_;
  const common::UniqueFd filler_;
  std::unique_ptr<SegmentStorage> storage_;
  absl::Status error_;
  uint64_t next_ = 0;
  std::map<uint64_t, Sample> durable_;
};

TEST(FullDiskTest, NothingThatWasWrittenIsLostAndTheProcessLives) {
  if (!SmallFileSystem("size=1m").valid()) GTEST_SKIP() << "may not mount a small file system";
  const char* const more = std::getenv("RETROINFER_FULL_DISK_RUNS");
  const uint64_t seed = TestSeed();
  const uint64_t num_runs = more == nullptr ? 4 : std::strtoull(more, nullptr, 10);
  // Beside each other: they wait most of their time. A few only, as each takes 20 MB.
  std::deque<std::pair<uint64_t, pid_t>> running;
  for (uint64_t run = 0; run < num_runs || !running.empty(); ++run) {
    if (run >= num_runs || running.size() == 8) {
      const auto [seed_of_run, child] = running.front();
      running.pop_front();
      int status = 0;
      ASSERT_EQ(waitpid(child, &status, 0), child);
      EXPECT_EQ(status, 0) << "seed " << seed_of_run;
    }
    if (run >= num_runs) continue;
    const pid_t child = fork();
    if (child == 0) {
      const common::UniqueFd root = SmallFileSystem("size=20m");
      const std::string wrong =
          root.valid() ? FullDiskRun(root, seed + run).Go() : "no file system";
      if (!wrong.empty()) std::fprintf(stderr, "seed %lu: %s\n", seed + run, wrong.c_str());
      _exit(wrong.empty() ? 0 : 1);
    }
    running.emplace_back(seed + run, child);
  }
}

}  // namespace
}  // namespace retroinfer::kvstore
