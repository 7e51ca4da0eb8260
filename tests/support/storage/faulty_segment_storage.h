// A segment storage with a bad disk.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kv_store_service/persistence/segment_storage.h"

namespace retroinfer::kvstore {

enum class DiskFault {
  kNone,
  kNoSpace,  // writes: RESOURCE_EXHAUSTED
  kIoError,  // INTERNAL
  kCorrupt,  // reads: a check fails; the segment goes into quarantine
};

// Passes calls on to another storage, or fails them.
//
// Threads: as the wrapped one; faults may be changed at any time.
class FaultySegmentStorage : public SegmentStorage {
 public:
  // REQUIRES: `wrapped` outlives this object.
  explicit FaultySegmentStorage(SegmentStorage* wrapped) : wrapped_(*wrapped) {}

  // Fails the next `count` writes (Put, Delete, PutContext, DeleteContext, FlushTouches,
  // PurgeQuarantine) or reads (Find, ReadTokens, Read, OpenParts and
  // the reads of parts, VerifyAll); count < 0: until changed.
  void FailWrites(DiskFault fault, int count = -1);
  void FailReads(DiskFault fault, int count = -1);

  // Makes every read and write take this much longer. Those that wait already go on at once.
  void SetDelay(absl::Duration delay);

  absl::Status Put(const SegmentRecord& record, std::span<const int32_t> token_ids,
                   std::span<const std::byte> image) override;
  absl::StatusOr<SegmentRecord> Find(const SegmentName& name,
                                     std::span<const int32_t> token_ids) override;
  std::optional<SegmentRecord> Peek(const SegmentName& name) override;
  std::vector<SegmentRecord> Children(const SegmentName& parent) override {
    return wrapped_.Children(parent);
  }
  absl::StatusOr<std::vector<int32_t>> ReadTokens(const SegmentName& name) override;
  absl::Status Read(const SegmentName& name, std::span<std::byte> image) override;
  absl::StatusOr<std::unique_ptr<ImageParts>> OpenParts(const SegmentName& name) override;
  absl::StatusOr<size_t> Delete(std::span<const SegmentName> names) override;
  void Touch(std::span<const SegmentName> names, absl::Time when) override;
  absl::Status FlushTouches() override;
  std::vector<SegmentRecord> List() override;
  absl::Status PutContext(const ContextRecord& context) override;
  absl::StatusOr<ContextRecord> FindContext(const Hash256& salt_hash,
                                            std::string_view context_name) override;
  absl::Status DeleteContext(const Hash256& salt_hash, std::string_view context_name) override;
  std::vector<ContextRecord> ListContexts() override;
  absl::Status Quarantine(const SegmentName& name, std::string_view reason) override;
  absl::StatusOr<size_t> PurgeQuarantine() override;
  absl::StatusOr<VerifyReport> VerifyAll() override;
  StorageStats Stats() override;
  void Close() override { wrapped_.Close(); }

 private:
  class FaultyParts;
  struct Plan {
    DiskFault fault = DiskFault::kNone;
    int count = 0;
  };
  // Waits, then returns the fault of this call.
  DiskFault Next(Plan& plan);
  absl::Status BeforeWrite();
  // `name`: the segment that a corrupt read puts into quarantine; may be null.
  absl::Status BeforeRead(const SegmentName* name);

  SegmentStorage& wrapped_;

  absl::Mutex mutex_;
  Plan writes_ ABSL_GUARDED_BY(mutex_);
  Plan reads_ ABSL_GUARDED_BY(mutex_);
  absl::Duration delay_ ABSL_GUARDED_BY(mutex_) = absl::ZeroDuration();
  uint64_t num_delays_set_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace retroinfer::kvstore
