// Operations of the block cache, of which one can be made to fail.
//
// Threads: one at a time.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "gpu_worker/ops/block_cache/block_cache_ops.h"

namespace retroinfer::test_support {

class FaultyBlockCacheOps final : public BlockCacheOps {
 public:
  // `ops` outlives this.
  explicit FaultyBlockCacheOps(BlockCacheOps& ops) : ops_(ops) {}

  // Lets `num_good` further calls of `operation` ("AdmitSlots") do what they should; those after
  // them do nothing and return INTERNAL, until Heal().
  void FailAfter(std::string operation, int num_good) {
    operation_ = std::move(operation);
    num_good_ = num_good;
  }
  void Heal() { operation_.clear(); }
  int num_failed() const { return num_failed_; }

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
    if (operation_ != operation || num_good_-- > 0) return call();
    ++num_failed_;
    return absl::InternalError(std::string(operation) + " fails");
  }

  BlockCacheOps& ops_;
  std::string operation_;
  int num_good_ = 0;
  int num_failed_ = 0;
};

}  // namespace retroinfer::test_support
