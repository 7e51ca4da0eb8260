#include "kv_store_service/persistence/folder_size.h"

namespace retroinfer::kvstore {
namespace {

constexpr absl::Duration kHolds = absl::Seconds(30);
constexpr int kAdditionsPerMeasurement = 64;

}  // namespace

uint64_t FolderSize::Bytes() {
  uint64_t changes_before = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (now_() - measured_ < kHolds && additions_ < kAdditionsPerMeasurement) return bytes_;
    changes_before = num_changes_;
  }
  const uint64_t measured = measure_();
  absl::MutexLock lock(&mutex_);
  // What changed meanwhile may be in it or not: the next question measures again.
  if (num_changes_ != changes_before) return measured;
  bytes_ = measured;
  additions_ = 0;
  measured_ = now_();
  return measured;
}

void FolderSize::Add(uint64_t bytes) {
  absl::MutexLock lock(&mutex_);
  bytes_ += bytes;
  ++additions_;
  ++num_changes_;
}

void FolderSize::Forget() {
  absl::MutexLock lock(&mutex_);
  measured_ = absl::InfinitePast();
  ++num_changes_;
}

}  // namespace retroinfer::kvstore
