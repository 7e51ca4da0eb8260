// Operations of the block cache, of which one can be made to fail.
//
// Threads: as the operations; FailAfter() and Heal() on any.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "gpu_worker/ops/backend/ops.h"
#include "gpu_worker/ops/block_cache/block_cache_ops.h"

namespace retroinfer::test_support {

class FaultyBlockCacheOps final : public BlockCacheOps {
 public:
  // `ops` outlives this.
  explicit FaultyBlockCacheOps(BlockCacheOps& ops) : ops_(ops) {}

  // Lets `num_good` further calls of `operation` ("AdmitSlots") do what they should; those after
  // them do nothing and return INTERNAL, until Heal().
  void FailAfter(std::string operation, int num_good) {
    const absl::MutexLock lock(&mutex_);
    operation_ = std::move(operation);
    num_good_ = num_good;
  }
  void Heal() { FailAfter("", 0); }
  int num_failed() const {
    const absl::MutexLock lock(&mutex_);
    return num_failed_;
  }

  bool uses_transient_slots() const override { return ops_.uses_transient_slots(); }
  absl::Status PageLookup(Stream& stream, const PageLookupArgs& args) override {
    return Try("PageLookup", [&] { return ops_.PageLookup(stream, args); });
  }
  absl::Status AdmitPages(Stream& stream, const AdmitPagesArgs& args) override {
    return Try("AdmitPages", [&] { return ops_.AdmitPages(stream, args); });
  }
  absl::Status ApplyEvictions(Stream& stream, const ApplyEvictionsArgs& args) override {
    return Try("ApplyEvictions", [&] { return ops_.ApplyEvictions(stream, args); });
  }
  absl::Status ReleasePages(Stream& stream, const ReleasePagesArgs& args) override {
    return Try("ReleasePages", [&] { return ops_.ReleasePages(stream, args); });
  }
  absl::Status TakeSlots(Stream& stream, const TakeSlotsArgs& args) override {
    return Try("TakeSlots", [&] { return ops_.TakeSlots(stream, args); });
  }
  absl::Status AdmitSlots(Stream& stream, const AdmitSlotsArgs& args) override {
    return Try("AdmitSlots", [&] { return ops_.AdmitSlots(stream, args); });
  }
  absl::Status LogSnapshot(Stream& stream, const LogSnapshotArgs& args) override {
    return Try("LogSnapshot", [&] { return ops_.LogSnapshot(stream, args); });
  }

 private:
  absl::Status Try(const char* operation, const std::function<absl::Status()>& call) {
    {
      const absl::MutexLock lock(&mutex_);
      if (operation_ == operation && num_good_-- <= 0) {
        ++num_failed_;
        return absl::InternalError(std::string(operation) + " fails");
      }
    }
    return call();
  }

  BlockCacheOps& ops_;
  mutable absl::Mutex mutex_;
  std::string operation_ ABSL_GUARDED_BY(mutex_);
  int num_good_ ABSL_GUARDED_BY(mutex_) = 0;
  int num_failed_ ABSL_GUARDED_BY(mutex_) = 0;
};

// A backend's operations with these.
class OpsWithFaultyBlockCache final : public Ops {
 public:
  explicit OpsWithFaultyBlockCache(std::unique_ptr<Ops> ops)
      : ops_(std::move(ops)), block_cache_(ops_->block_cache()) {}

  ModelOps& model() override { return ops_->model(); }
  AttentionOps& attention() override { return ops_->attention(); }
  IndexOps& index() override { return ops_->index(); }
  FaultyBlockCacheOps& block_cache() override { return block_cache_; }
  CollectiveOps& collective() override { return ops_->collective(); }
  absl::Status CheckKvFormat(const KvFormat& format) const override {
    return ops_->CheckKvFormat(format);
  }

 private:
  const std::unique_ptr<Ops> ops_;
  FaultyBlockCacheOps block_cache_;
};

}  // namespace retroinfer::test_support
