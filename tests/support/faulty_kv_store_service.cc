// kv_store_service with a disk that tests can spoil while it runs.
//
// RETROINFER_CRASH_POINT: see ParseCrashPoint().
// RETROINFER_DISK_FAULTS: a file, read every 5 ms, with any of these words: "full" (writes fail for
// lack of space), "write-errors", "read-errors", "slow" (each access takes 300 ms), "crawling" (800
// ms), "stuck" (60 s), "parts-held" (what is asked for of a segment behind its index waits until
// the word is gone; how many such reads wait is in the file of that name with ".held" behind it),
// "whole" (segments are read as a whole alone, as from a folder of an earlier version). No file: a
// good disk. At its end it waits 1 s for the disk, so that tests do not wait long.
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/status/status_macros.h"
#include "kv_store_service/server/store_main.h"
#include "tests/support/storage/crash_point.h"
#include "tests/support/storage/faulty_segment_storage.h"

namespace retroinfer::kvstore {
namespace {

// Owns the storage that it spoils. Lives as long as the process, as its thread does.
class SpoiledStorage : public FaultySegmentStorage {
 public:
  SpoiledStorage(std::unique_ptr<SegmentStorage> good, std::string faults_path)
      : FaultySegmentStorage(good.get()),
        good_(std::move(good)),
        held_path_(faults_path + ".held") {
    thread_ = std::jthread([this, path = std::move(faults_path)](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        std::ifstream file(path);
        Apply({std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()});
        absl::SleepFor(absl::Milliseconds(5));
      }
    });
  }

  absl::StatusOr<std::unique_ptr<ImageParts>> OpenParts(const SegmentName& name) override {
    ASSIGN_OR_RETURN(auto parts, FaultySegmentStorage::OpenParts(name));
    if (parts == nullptr || only_whole_) return nullptr;
    return std::make_unique<HeldParts>(this, std::move(parts));
  }

 private:
  class HeldParts : public ImageParts {
   public:
    HeldParts(SpoiledStorage* storage, std::unique_ptr<ImageParts> parts)
        : storage_(*storage), parts_(std::move(parts)) {}
    uint32_t part_bytes() const override { return parts_->part_bytes(); }
    uint64_t image_bytes() const override { return parts_->image_bytes(); }
    const std::vector<int32_t>& token_ids() const override { return parts_->token_ids(); }
    absl::Status Read(std::span<const PartRun> runs, std::span<std::byte> image) override {
      if (is_index_.exchange(false)) {
        reader_ = std::this_thread::get_id();
      } else if (reader_ == std::this_thread::get_id()) {
        storage_.WaitUntilPartsAreHeld();
      } else {
        storage_.Hold();
      }
      return parts_->Read(runs, image);
    }

   private:
    SpoiledStorage& storage_;
    const std::unique_ptr<ImageParts> parts_;
    std::atomic<bool> is_index_{true};  // which is read first,
    std::thread::id reader_;            // by the thread that reads what comes behind as well
  };

  // Returns when parts are not held.
  void Hold() {
    if (!holds_parts_) return;
    Count(1);
    while (holds_parts_) absl::SleepFor(absl::Milliseconds(5));
    Count(-1);
  }
  // What comes behind must not be there before anybody has asked for parts; but the thread that
  // reads it has other segments to read for who will ask, and cannot wait for long.
  void WaitUntilPartsAreHeld() {
    const absl::Time deadline = absl::Now() + absl::Seconds(3);
    while (holds_parts_ && absl::Now() < deadline) {
      {
        absl::MutexLock lock(&mutex_);
        if (num_held_ > 0) return;
      }
      absl::SleepFor(absl::Milliseconds(5));
    }
  }
  void Count(int more) {
    absl::MutexLock lock(&mutex_);
    num_held_ += more;
    const std::string next = held_path_ + ".next";
    std::ofstream(next) << num_held_;
    std::filesystem::rename(next, held_path_);
  }
  void Apply(const std::string& faults) {
    if (faults == applied_) return;
    applied_ = faults;
    const auto has = [&faults](const char* word) { return absl::StrContains(faults, word); };
    FailWrites(has("full")           ? DiskFault::kNoSpace
               : has("write-errors") ? DiskFault::kIoError
                                     : DiskFault::kNone);
    holds_parts_ = has("parts-held");
    only_whole_ = has("whole");
    FailReads(has("read-errors") ? DiskFault::kIoError : DiskFault::kNone);
    SetDelay(has("stuck")      ? absl::Seconds(60)
             : has("crawling") ? absl::Milliseconds(800)
             : has("slow")     ? absl::Milliseconds(300)
                               : absl::ZeroDuration());
  }

  const std::unique_ptr<SegmentStorage> good_;
  const std::string held_path_;
  std::string applied_;  // of thread_
  std::atomic<bool> holds_parts_{false};
  std::atomic<bool> only_whole_{false};
  absl::Mutex mutex_;
  int num_held_ ABSL_GUARDED_BY(mutex_) = 0;
  std::jthread thread_;
};

absl::StatusOr<std::unique_ptr<SegmentStorage>> OpenSpoiled(RocksDbStorageOptions options) {
  if (const char* point = std::getenv("RETROINFER_CRASH_POINT")) {
    ASSIGN_OR_RETURN(options.on_stage, ParseCrashPoint(point));
  }
  ASSIGN_OR_RETURN(auto storage, OpenRocksDbSegmentStorage(std::move(options)));
  const char* faults = std::getenv("RETROINFER_DISK_FAULTS");
  if (faults == nullptr) return storage;
  return std::make_unique<SpoiledStorage>(std::move(storage), faults);
}

int Main(int argc, char** argv) {
  StoreServerOptions options;
  options.durable.open_storage = OpenSpoiled;
  options.durable.stop_timeout = absl::Seconds(1);
  return StoreMain(argc, argv, options);
}

}  // namespace
}  // namespace retroinfer::kvstore

int main(int argc, char** argv) { return retroinfer::kvstore::Main(argc, argv); }
