#include "tests/support/storage/in_memory_segment_storage.h"

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kv_store_service/persistence/catalog_storage.h"

namespace retroinfer::kvstore {
namespace {

// A copy of an image, in parts.
class PartsInMemory : public ImageParts {
 public:
  PartsInMemory(std::vector<int32_t> token_ids, std::vector<std::byte> image)
      : token_ids_(std::move(token_ids)), image_(std::move(image)) {}

  uint32_t part_bytes() const override { return 4096; }
  uint64_t image_bytes() const override { return image_.size(); }
  const std::vector<int32_t>& token_ids() const override { return token_ids_; }
  absl::Status Read(std::span<const PartRun> runs, std::span<std::byte> image) override {
    for (const PartRun& run : runs) {
      const size_t begin = size_t{run.first} * part_bytes();
      const size_t end = std::min(image_.size(), begin + size_t{run.count} * part_bytes());
      std::copy(image_.begin() + static_cast<std::ptrdiff_t>(begin),
                image_.begin() + static_cast<std::ptrdiff_t>(end),
                image.begin() + static_cast<std::ptrdiff_t>(begin));
    }
    return absl::OkStatus();
  }

 private:
  const std::vector<int32_t> token_ids_;
  const std::vector<std::byte> image_;
};

class InMemorySegmentStorage : public CatalogStorage {
 public:
  explicit InMemorySegmentStorage(StorageStageHook on_stage) : on_stage_(std::move(on_stage)) {}

  absl::Status Put(const SegmentRecord& record, std::span<const int32_t> token_ids,
                   std::span<const std::byte> image) override {
    const absl::Status valid = CheckPut(record, token_ids, image);
    if (!valid.ok()) return valid;
    absl::MutexLock write_lock(&write_mutex_);
    if (catalog_.Find(record.name).has_value()) return absl::OkStatus();
    Report(StorageStage::kPutBegun);
    Report(StorageStage::kPutHalfPayload);
    Payload payload{{token_ids.begin(), token_ids.end()}, {image.begin(), image.end()}};
    Report(StorageStage::kPutPayload);
    {
      absl::MutexLock lock(&mutex_);
      payloads_.insert_or_assign(record.name, std::move(payload));
      ++stats_.puts_total;
      stats_.put_bytes_total += image.size();
      stats_.physical_bytes += image.size();
    }
    ManifestRow row;
    row.record = record;
    catalog_.Insert(row);
    Report(StorageStage::kPutCommitted);
    return absl::OkStatus();
  }

  absl::StatusOr<SegmentRecord> Find(const SegmentName& name,
                                     std::span<const int32_t> token_ids) override {
    const auto row = catalog_.Find(name);
    absl::MutexLock lock(&mutex_);
    const auto found = payloads_.find(name);
    if (!row.has_value() || found == payloads_.end()) return NoSuch(name);
    if (!std::equal(token_ids.begin(), token_ids.end(), found->second.token_ids.begin(),
                    found->second.token_ids.end())) {
      ++stats_.token_mismatches_total;
      return absl::NotFoundError(absl::StrCat(Describe(name), " has other tokens"));
    }
    return row->record;
  }

  absl::StatusOr<std::vector<int32_t>> ReadTokens(const SegmentName& name) override {
    absl::MutexLock lock(&mutex_);
    const auto found = payloads_.find(name);
    if (found == payloads_.end()) return NoSuch(name);
    return found->second.token_ids;
  }

  absl::Status Read(const SegmentName& name, std::span<std::byte> image) override {
    const auto row = catalog_.Find(name);
    if (!row.has_value()) return NoSuch(name);
    const absl::Status valid = CheckRead(row->record, image);
    if (!valid.ok()) return valid;
    absl::MutexLock lock(&mutex_);
    const auto found = payloads_.find(name);
    if (found == payloads_.end()) return NoSuch(name);
    std::copy(found->second.image.begin(), found->second.image.end(), image.begin());
    ++stats_.reads_total;
    stats_.read_bytes_total += image.size();
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<ImageParts>> OpenParts(const SegmentName& name) override {
    absl::MutexLock lock(&mutex_);
    const auto found = payloads_.find(name);
    if (found == payloads_.end()) return NoSuch(name);
    return std::make_unique<PartsInMemory>(found->second.token_ids, found->second.image);
  }

  absl::StatusOr<size_t> Delete(std::span<const SegmentName> names) override {
    absl::MutexLock write_lock(&write_mutex_);
    size_t removed = 0;
    for (const SegmentName& name : names) {
      if (!catalog_.Erase(name)) continue;
      Drop(name);
      ++removed;
    }
    if (removed == 0) return removed;
    Report(StorageStage::kDeleteCommitted);
    absl::MutexLock lock(&mutex_);
    stats_.deletes_total += removed;
    return removed;
  }

  void Touch(std::span<const SegmentName> names, absl::Time when) override {
    catalog_.Touch(names, when);
  }
  absl::Status FlushTouches() override {
    catalog_.TakeTouched();
    return absl::OkStatus();
  }

  absl::Status PutContext(const ContextRecord& context) override {
    absl::MutexLock write_lock(&write_mutex_);
    const absl::Status valid = catalog_.CheckContext(context);
    if (valid.ok()) catalog_.PutContext(context);
    return valid;
  }
  absl::Status DeleteContext(const Hash256& salt_hash, std::string_view context_name) override {
    absl::MutexLock write_lock(&write_mutex_);
    if (catalog_.EraseContext(salt_hash, context_name)) return absl::OkStatus();
    return absl::NotFoundError("there is no context of this name");
  }

  absl::Status Quarantine(const SegmentName& name, std::string_view) override {
    absl::MutexLock write_lock(&write_mutex_);
    if (!catalog_.Erase(name)) return NoSuch(name);
    Drop(name);
    absl::MutexLock lock(&mutex_);
    ++stats_.corrupt_total;
    ++stats_.quarantined;
    return absl::OkStatus();
  }

  absl::StatusOr<size_t> PurgeQuarantine() override {
    absl::MutexLock lock(&mutex_);
    return std::exchange(stats_.quarantined, 0);
  }

  absl::StatusOr<VerifyReport> VerifyAll() override {
    VerifyReport report;
    const SegmentCatalog::Totals totals = catalog_.totals();
    report.segments_checked = totals.segments;
    report.bytes_checked = totals.image_bytes;
    return report;
  }

  StorageStats Stats() override {
    absl::MutexLock lock(&mutex_);
    StorageStats stats = stats_;
    AddTotals(&stats);
    return stats;
  }

 private:
  struct Payload {
    std::vector<int32_t> token_ids;
    std::vector<std::byte> image;
  };

  static absl::Status NoSuch(const SegmentName& name) {
    return absl::NotFoundError(absl::StrCat("there is no ", Describe(name)));
  }

  void Report(StorageStage stage) {
    if (on_stage_) on_stage_(stage);
  }

  void Drop(const SegmentName& name) {
    absl::MutexLock lock(&mutex_);
    const auto found = payloads_.find(name);
    stats_.physical_bytes -= found->second.image.size();
    payloads_.erase(found);
  }

  const StorageStageHook on_stage_;
  absl::Mutex write_mutex_;  // before mutex_
  absl::Mutex mutex_;
  absl::flat_hash_map<SegmentName, Payload> payloads_ ABSL_GUARDED_BY(mutex_);
  StorageStats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<SegmentStorage> MakeInMemorySegmentStorage(StorageStageHook on_stage) {
  return std::make_unique<InMemorySegmentStorage>(std::move(on_stage));
}

}  // namespace retroinfer::kvstore
