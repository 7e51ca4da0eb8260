// kv_store_service with a disk that tests can spoil while it runs.
//
// RETROINFER_CRASH_POINT: see ParseCrashPoint().
// RETROINFER_DISK_FAULTS: a file, read every 5 ms, with any of these words: "full" (writes fail for
// lack of space), "write-errors", "read-errors", "slow" (each access takes 300 ms), "crawling" (800
// ms), "stuck" (60 s). No file: a good disk. At its end it waits 1 s for the disk, so that tests do
// not wait long.
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
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
      : FaultySegmentStorage(good.get()), good_(std::move(good)) {
    thread_ = std::jthread([this, path = std::move(faults_path)](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        std::ifstream file(path);
        Apply({std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()});
        absl::SleepFor(absl::Milliseconds(5));
      }
    });
  }

 private:
  void Apply(const std::string& faults) {
    if (faults == applied_) return;
    applied_ = faults;
    const auto has = [&faults](const char* word) { return absl::StrContains(faults, word); };
    FailWrites(has("full")           ? DiskFault::kNoSpace
               : has("write-errors") ? DiskFault::kIoError
                                     : DiskFault::kNone);
    FailReads(has("read-errors") ? DiskFault::kIoError : DiskFault::kNone);
    SetDelay(has("stuck")      ? absl::Seconds(60)
             : has("crawling") ? absl::Milliseconds(800)
             : has("slow")     ? absl::Milliseconds(300)
                               : absl::ZeroDuration());
  }

  const std::unique_ptr<SegmentStorage> good_;
  std::string applied_;  // of thread_
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
