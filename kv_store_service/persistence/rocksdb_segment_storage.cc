// Invariants:
//
// * A segment exists if and only if it has a manifest row. The manifest row, the index row (tokens
//   and checksums) and the removal of the pending row are one synced batch, written after the flush
//   that made the payload durable.
// * Every payload in the database has a manifest row, a quarantine row or a pending row; the
//   pending row is durable before the payload's first byte. So whatever dies, recovery finds each
//   payload that nobody owns.
// * The catalog has what the manifest table has. It is changed after the disk, except when a
//   segment is taken out of use: then nobody may see it, whatever the disk does.
// * The witness never counts more segments or contexts than the database has.
#include "kv_store_service/persistence/rocksdb_segment_storage.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/status/status_macros.h"
#include "kv_store_service/persistence/catalog_storage.h"
#include "kv_store_service/persistence/folder_size.h"
#include "kv_store_service/persistence/payload_table.h"
#include "kv_store_service/persistence/placed_parts.h"
#include "kv_store_service/persistence/row_witness.h"
#include "kv_store_service/persistence/segment_catalog.h"
#include "kv_store_service/persistence/segment_codec.h"
#include "kv_store_service/persistence/segment_rows.h"
#include "kv_store_service/persistence/segment_tables.h"
#include "kv_store_service/persistence/storage_folder.h"
#include "kv_store_service/persistence/storage_recovery.h"

namespace retroinfer::kvstore {
namespace {

constexpr size_t kTouchesPerBatch = 1024;

// Lock order: write_mutex_, then mutex_ (and the catalog's own).
class RocksDbSegmentStorage final : public CatalogStorage {
 public:
  RocksDbSegmentStorage(RocksDbStorageOptions options, std::unique_ptr<StorageFolder> folder)
      : options_(std::move(options)), folder_(std::move(folder)) {}
  ~RocksDbSegmentStorage() override { Close(); }

  absl::Status Start();

  absl::Status Put(const SegmentRecord& record, std::span<const int32_t> token_ids,
                   std::span<const std::byte> image) override;
  absl::StatusOr<SegmentRecord> Find(const SegmentName& name,
                                     std::span<const int32_t> token_ids) override;
  absl::StatusOr<std::vector<int32_t>> ReadTokens(const SegmentName& name) override;
  absl::Status Read(const SegmentName& name, std::span<std::byte> image) override;
  absl::StatusOr<std::unique_ptr<ImageParts>> OpenParts(const SegmentName& name) override;
  absl::StatusOr<size_t> Delete(std::span<const SegmentName> names) override;
  void Touch(std::span<const SegmentName> names, absl::Time when) override;
  absl::Status FlushTouches() override;
  absl::Status PutContext(const ContextRecord& context) override;
  absl::Status DeleteContext(const Hash256& salt_hash, std::string_view context_name) override;
  absl::Status Quarantine(const SegmentName& name, std::string_view reason) override;
  absl::StatusOr<size_t> PurgeQuarantine() override;
  absl::StatusOr<VerifyReport> VerifyAll() override;
  StorageStats Stats() override;
  void Close() override ABSL_LOCKS_EXCLUDED(write_mutex_);

 private:
  absl::Status OpenDatabase(bool* skipped_log);
  absl::Status ReplaceDatabase(const absl::Status& damage);

  absl::Status WriteSegment(const SegmentRecord& record, std::span<const int32_t> token_ids,
                            std::span<const std::byte> image)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  absl::Status RequireOpen() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_) {
    if (state_ != State::kClosed) return absl::OkStatus();
    return absl::UnavailableError("durable segments: the store is stopping");
  }
  absl::Status PrepareToWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  absl::Status RemovePayloads(std::vector<PayloadTable::Chunks> payloads)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);
  absl::Status FlushTouchesLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_);

  absl::Status ReadImage(const ManifestRow& row, std::span<std::byte> image);
  // Takes a segment that `status` calls damaged out of use. Returns what to tell the caller.
  absl::Status AfterRead(const ManifestRow& row, absl::Status status);
  absl::Status SetAside(const ManifestRow& row, std::string_view reason);
  absl::Status AfterWrite(absl::Status status);
  // The same of rows that belong together: the next write first has the database resume.
  absl::Status AfterBatch(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(write_mutex_) {
    write_failed_ |= !status.ok();
    return AfterWrite(std::move(status));
  }
  void Report(StorageStage stage) {
    if (options_.on_stage) options_.on_stage(stage);
  }

  const RocksDbStorageOptions options_;
  const std::unique_ptr<StorageFolder> folder_;
  FolderSize size_{[this] { return folder_->PhysicalBytes(); }};
  std::unique_ptr<SegmentTables> tables_;   // constant after Start()
  std::unique_ptr<PayloadTable> payloads_;  // constant after Start()
  ReadPool part_reads_{kPartReads, kPartBufferBytes};

  absl::Mutex write_mutex_;
  uint64_t next_payload_id_ ABSL_GUARDED_BY(write_mutex_) = 1;
  bool write_failed_ ABSL_GUARDED_BY(write_mutex_) = false;
  enum class State { kStarting, kOpen, kClosed } state_ ABSL_GUARDED_BY(write_mutex_) = {};
  std::optional<RowWitness> witness_ ABSL_GUARDED_BY(write_mutex_);  // set by Start()
  // Payloads that have a pending row and could not be removed yet.
  std::vector<PayloadTable::Chunks> leftovers_ ABSL_GUARDED_BY(write_mutex_);

  absl::Mutex mutex_;
  std::map<uint64_t, PayloadTable::Chunks> quarantine_ ABSL_GUARDED_BY(mutex_);
  StorageStats stats_ ABSL_GUARDED_BY(mutex_);  // the counters
};

void RocksDbSegmentStorage::Close() {
  absl::MutexLock write_lock(&write_mutex_);
  // A start that failed has not looked at everything.
  if (state_ == State::kOpen) FlushTouchesLocked().IgnoreError();
  if (state_ == State::kOpen && tables_->FlushAll().ok()) folder_->LeaveCleanMark();
  state_ = State::kClosed;
}

absl::Status RocksDbSegmentStorage::Start() {
  const bool was_closed = folder_->TakeCleanMark();
  {
    absl::MutexLock write_lock(&write_mutex_);
    ASSIGN_OR_RETURN(witness_, RowWitness::Open(folder_->witness_path(), &catalog_));
  }
  bool skipped_log = false;
  const absl::Status opened = OpenDatabase(&skipped_log);
  const bool replaced = absl::IsDataLoss(opened);
  RETURN_IF_ERROR(replaced ? ReplaceDatabase(opened) : opened);
  absl::MutexLock write_lock(&write_mutex_);
  ASSIGN_OR_RETURN(RecoveredRows rows, RecoverRows(tables_.get(), payloads_.get(), &catalog_,
                                                   !was_closed, absl::Now()));
  next_payload_id_ = rows.next_payload_id;
  const RowCounts damaged = {rows.corrupt_segments, rows.corrupt_contexts};
  rows.corrupt_rows += replaced ? 0 : witness_->CountLost(damaged);
  RETURN_IF_ERROR(witness_->Lower({}));
  state_ = State::kOpen;
  absl::MutexLock lock(&mutex_);
  for (const auto& [payload_id, row] : rows.quarantine) {
    quarantine_[payload_id] = {payload_id, row.num_chunks};
  }
  stats_.corrupt_total +=
      rows.corrupt_rows + (skipped_log ? 1 : 0) + (folder_->format_was_damaged() ? 1 : 0);
  stats_.orphans_removed_total += rows.orphans_removed;
  if (stats_.corrupt_total > 0) {
    spdlog::warn("durable segments: {} damaged rows in {} were taken out of use",
                 stats_.corrupt_total, options_.folder);
  }
  return absl::OkStatus();
}

absl::Status RocksDbSegmentStorage::OpenDatabase(bool* skipped_log) {
  SegmentTablesOptions options;
  options.write_buffer_bytes = options_.write_buffer_bytes;
  options.direct_reads = options_.direct_reads && folder_->SupportsDirectReads();
  auto tables = SegmentTables::Open(folder_->database_path(), options);
  if (absl::IsDataLoss(tables.status())) {
    // Most likely the end of the log, written while the machine went down.
    options.skip_damaged_log = true;
    *skipped_log = true;
    tables = SegmentTables::Open(folder_->database_path(), options);
  }
  RETURN_IF_ERROR(tables.status());
  RETURN_IF_ERROR((*tables)->VerifyTables());
  tables_ = *std::move(tables);
  payloads_ = std::make_unique<PayloadTable>(tables_.get(), std::max(1u, options_.read_threads));
  return absl::OkStatus();
}

absl::Status RocksDbSegmentStorage::ReplaceDatabase(const absl::Status& damage) {
  spdlog::error("durable segments: the database in {} is damaged ({}); it is moved to {}",
                options_.folder, damage.ToString(), folder_->damaged_path());
  RETURN_IF_ERROR(folder_->SetDatabaseAside());
  bool skipped_log = false;
  RETURN_IF_ERROR(OpenDatabase(&skipped_log));
  {
    absl::MutexLock lock(&mutex_);
    ++stats_.damaged_stores_total;
    ++stats_.corrupt_total;
  }
  SalvageAndLog(folder_->damaged_path(), this);
  // Recovery reads the rows again from the new database.
  catalog_.Clear();
  return absl::OkStatus();
}

absl::Status RocksDbSegmentStorage::AfterWrite(absl::Status status) {
  if (status.ok()) return status;
  size_.Forget();
  absl::MutexLock lock(&mutex_);
  ++stats_.write_errors_total;
  return status;
}

absl::Status RocksDbSegmentStorage::PrepareToWrite() {
  RETURN_IF_ERROR(RequireOpen());
  if (write_failed_) {
    RETURN_IF_ERROR(tables_->Resume());
    write_failed_ = false;
  }
  if (!leftovers_.empty()) return RemovePayloads(std::exchange(leftovers_, {}));
  return absl::OkStatus();
}

absl::Status RocksDbSegmentStorage::Put(const SegmentRecord& record,
                                        std::span<const int32_t> token_ids,
                                        std::span<const std::byte> image) {
  RETURN_IF_ERROR(CheckPut(record, token_ids, image));
  absl::MutexLock write_lock(&write_mutex_);
  if (catalog_.Find(record.name).has_value()) return absl::OkStatus();
  RETURN_IF_ERROR(AfterWrite(PrepareToWrite()));
  RETURN_IF_ERROR(AfterWrite(folder_->CheckFreeSpace(image.size(), options_.reserve_bytes)));
  RETURN_IF_ERROR(AfterBatch(WriteSegment(record, token_ids, image)));
  Report(StorageStage::kPutCommitted);
  size_.Add(image.size());
  absl::MutexLock lock(&mutex_);
  ++stats_.puts_total;
  stats_.put_bytes_total += image.size();
  return absl::OkStatus();
}

absl::Status RocksDbSegmentStorage::WriteSegment(const SegmentRecord& record,
                                                 std::span<const int32_t> token_ids,
                                                 std::span<const std::byte> image) {
  ManifestRow manifest;
  manifest.record = record;
  manifest.payload_id = next_payload_id_++;
  manifest.chunk_bytes = options_.chunk_bytes;
  const PayloadTable::Chunks chunks = {manifest.payload_id, manifest.num_chunks()};
  leftovers_.push_back(chunks);  // until the manifest is durable
  rocksdb::WriteBatch intent;
  AddPendingRow(tables_.get(), chunks.payload_id, chunks.num_chunks, &intent);
  RETURN_IF_ERROR(tables_->Write(&intent, /*sync=*/true));
  Report(StorageStage::kPutBegun);

  IndexRow index;
  index.token_ids.assign(token_ids.begin(), token_ids.end());
  ASSIGN_OR_RETURN(index.chunk_crcs,
                   payloads_->Write(chunks.payload_id, image, options_.chunk_bytes,
                                    [this] { Report(StorageStage::kPutHalfPayload); }));
  Report(StorageStage::kPutPayload);

  rocksdb::WriteBatch commit;
  AddSegmentRows(tables_.get(), index, &manifest, &commit);
  AddPartsRow(tables_.get(), record.name, PartsOf(chunks.payload_id, image), &commit);
  RETURN_IF_ERROR(tables_->Write(&commit, /*sync=*/true));
  leftovers_.pop_back();
  catalog_.Insert(manifest);
  witness_->Raise();
  return absl::OkStatus();
}

absl::Status RocksDbSegmentStorage::ReadImage(const ManifestRow& row, std::span<std::byte> image) {
  ASSIGN_OR_RETURN(const IndexRow index, LoadIndexRow(tables_.get(), row));
  return payloads_->Read(row.payload_id, row.chunk_bytes, index.chunk_crcs, image);
}

absl::Status RocksDbSegmentStorage::AfterRead(const ManifestRow& row, absl::Status status) {
  if (status.ok()) return status;
  if (!absl::IsDataLoss(status)) {
    absl::MutexLock lock(&mutex_);
    ++stats_.read_errors_total;
    return status;
  }
  const absl::Status aside = SetAside(row, {status.message().data(), status.message().size()});
  if (absl::IsNotFound(aside)) {
    return absl::NotFoundError(absl::StrCat(Describe(row.record.name), " was deleted meanwhile"));
  }
  return absl::DataLossError(absl::StrCat(Describe(row.record.name), " is damaged (",
                                          status.message(), ") and will not be used again"));
}

absl::Status RocksDbSegmentStorage::SetAside(const ManifestRow& row, std::string_view reason) {
  const SegmentName& name = row.record.name;
  // A deletion removes rows before the catalog knows: what a reader missed meanwhile is no damage.
  // After this wait the catalog knows.
  absl::MutexLock write_lock(&write_mutex_);
  if (!catalog_.Erase(name, row.payload_id)) {
    return absl::NotFoundError(absl::StrCat("there is no ", Describe(name)));
  }
  {
    absl::MutexLock lock(&mutex_);
    ++stats_.corrupt_total;
    quarantine_[row.payload_id] = {row.payload_id, row.num_chunks()};
  }
  spdlog::warn("durable segments: {} goes into quarantine: {}", Describe(name), reason);
  RETURN_IF_ERROR(RequireOpen());
  RETURN_IF_ERROR(AfterWrite(witness_->Lower({})));
  rocksdb::WriteBatch batch;
  AddQuarantineRow(tables_.get(), row, absl::Now(), reason, &batch);
  RemoveSegmentRows(tables_.get(), name, &batch);
  return AfterBatch(tables_->Write(&batch, /*sync=*/true));
}

absl::StatusOr<SegmentRecord> RocksDbSegmentStorage::Find(const SegmentName& name,
                                                          std::span<const int32_t> token_ids) {
  ASSIGN_OR_RETURN(const ManifestRow row, Require(name));
  const auto index = LoadIndexRow(tables_.get(), row);
  if (!index.ok()) return AfterRead(row, index.status());
  if (!std::equal(token_ids.begin(), token_ids.end(), index->token_ids.begin(),
                  index->token_ids.end())) {
    absl::MutexLock lock(&mutex_);
    ++stats_.token_mismatches_total;
    return absl::NotFoundError(absl::StrCat(Describe(name), " has other tokens"));
  }
  return row.record;
}

absl::StatusOr<std::vector<int32_t>> RocksDbSegmentStorage::ReadTokens(const SegmentName& name) {
  ASSIGN_OR_RETURN(const ManifestRow row, Require(name));
  auto index = LoadIndexRow(tables_.get(), row);
  if (!index.ok()) return AfterRead(row, index.status());
  return std::move(index->token_ids);
}

absl::Status RocksDbSegmentStorage::Read(const SegmentName& name, std::span<std::byte> image) {
  ASSIGN_OR_RETURN(const ManifestRow row, Require(name));
  RETURN_IF_ERROR(CheckRead(row.record, image));
  RETURN_IF_ERROR(AfterRead(row, ReadImage(row, image)));
  absl::MutexLock lock(&mutex_);
  ++stats_.reads_total;
  stats_.read_bytes_total += image.size();
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<ImageParts>> RocksDbSegmentStorage::OpenParts(
    const SegmentName& name) {
  ASSIGN_OR_RETURN(const ManifestRow row, Require(name));
  const PlacedParts::Database database = {tables_.get(), payloads_.get(), folder_->database_path(),
                                          &part_reads_};
  return PlacedParts::Open(database, row, [this, row](absl::Status status) {
    return AfterRead(row, std::move(status));
  });
}

absl::Status RocksDbSegmentStorage::RemovePayloads(std::vector<PayloadTable::Chunks> payloads) {
  absl::Status status = payloads_->Remove(payloads);
  size_.Forget();
  if (status.ok()) {
    rocksdb::WriteBatch done;
    for (const PayloadTable::Chunks& payload : payloads) {
      RemovePendingRow(tables_.get(), payload.payload_id, &done);
    }
    status = tables_->Write(&done, /*sync=*/false);
  }
  if (!status.ok()) {
    write_failed_ = true;
    leftovers_.insert(leftovers_.end(), payloads.begin(), payloads.end());
  }
  return status;
}

absl::StatusOr<size_t> RocksDbSegmentStorage::Delete(std::span<const SegmentName> names) {
  absl::MutexLock write_lock(&write_mutex_);
  RETURN_IF_ERROR(AfterWrite(PrepareToWrite()));
  rocksdb::WriteBatch batch;
  std::vector<PayloadTable::Chunks> payloads;
  for (const SegmentName& name : names) {
    const auto row = catalog_.Find(name);
    if (!row.has_value()) continue;
    RemoveSegmentRows(tables_.get(), name, &batch);
    AddPendingRow(tables_.get(), row->payload_id, row->num_chunks(), &batch);
    payloads.push_back({row->payload_id, row->num_chunks()});
  }
  if (payloads.empty()) return 0;
  RETURN_IF_ERROR(AfterWrite(witness_->Lower({.segments = payloads.size()})));
  RETURN_IF_ERROR(AfterBatch(tables_->Write(&batch, /*sync=*/true)));
  Report(StorageStage::kDeleteCommitted);
  size_t removed = 0;
  for (const SegmentName& name : names) removed += catalog_.Erase(name) ? 1 : 0;
  {
    absl::MutexLock lock(&mutex_);
    stats_.deletes_total += removed;
  }
  // The segments are gone; a payload that cannot be removed now is removed by a later write.
  AfterWrite(RemovePayloads(std::move(payloads))).IgnoreError();
  return removed;
}

void RocksDbSegmentStorage::Touch(std::span<const SegmentName> names, absl::Time when) {
  catalog_.Touch(names, when);
  if (catalog_.num_touched() >= kTouchesPerBatch && write_mutex_.TryLock()) {
    FlushTouchesLocked().IgnoreError();
    write_mutex_.Unlock();
  }
}

absl::Status RocksDbSegmentStorage::FlushTouches() {
  absl::MutexLock write_lock(&write_mutex_);
  return FlushTouchesLocked();
}

absl::Status RocksDbSegmentStorage::FlushTouchesLocked() {
  RETURN_IF_ERROR(RequireOpen());
  const std::vector<SegmentCatalog::Use> uses = catalog_.TakeTouched();
  if (uses.empty()) return absl::OkStatus();
  rocksdb::WriteBatch batch;
  AddUsageRows(tables_.get(), uses, &batch);
  return AfterWrite(tables_->Write(&batch, /*sync=*/false));
}

absl::Status RocksDbSegmentStorage::PutContext(const ContextRecord& context) {
  absl::MutexLock write_lock(&write_mutex_);
  RETURN_IF_ERROR(catalog_.CheckContext(context));
  RETURN_IF_ERROR(AfterWrite(PrepareToWrite()));
  rocksdb::WriteBatch batch;
  batch.Put(tables_->handle(Table::kContexts), ContextKey(context.salt_hash, context.context_name),
            EncodeContext(context));
  RETURN_IF_ERROR(AfterWrite(tables_->Write(&batch, /*sync=*/true)));
  catalog_.PutContext(context);
  witness_->Raise();
  return absl::OkStatus();
}

absl::Status RocksDbSegmentStorage::DeleteContext(const Hash256& salt_hash,
                                                  std::string_view context_name) {
  absl::MutexLock write_lock(&write_mutex_);
  if (!catalog_.FindContext(salt_hash, context_name).has_value()) {
    return absl::NotFoundError("there is no context of this name");
  }
  RETURN_IF_ERROR(AfterWrite(PrepareToWrite()));
  RETURN_IF_ERROR(AfterWrite(witness_->Lower({.contexts = 1})));
  rocksdb::WriteBatch batch;
  batch.Delete(tables_->handle(Table::kContexts), ContextKey(salt_hash, context_name));
  RETURN_IF_ERROR(AfterWrite(tables_->Write(&batch, /*sync=*/true)));
  catalog_.EraseContext(salt_hash, context_name);
  return absl::OkStatus();
}

absl::Status RocksDbSegmentStorage::Quarantine(const SegmentName& name, std::string_view reason) {
  ASSIGN_OR_RETURN(const ManifestRow row, Require(name));
  return SetAside(row, reason);
}

absl::StatusOr<size_t> RocksDbSegmentStorage::PurgeQuarantine() {
  absl::MutexLock write_lock(&write_mutex_);
  std::vector<PayloadTable::Chunks> payloads;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [payload_id, chunks] : quarantine_) payloads.push_back(chunks);
  }
  RETURN_IF_ERROR(folder_->RemoveDamaged());
  if (payloads.empty()) return 0;
  RETURN_IF_ERROR(AfterWrite(PrepareToWrite()));
  std::vector<PayloadTable::Chunks> stored = payloads;
  std::erase_if(stored, [](const PayloadTable::Chunks& chunks) { return chunks.num_chunks == 0; });
  rocksdb::WriteBatch done;
  for (const PayloadTable::Chunks& payload : payloads) {
    done.Delete(tables_->handle(Table::kQuarantine), PayloadIdKey(payload.payload_id));
  }
  absl::Status status = payloads_->Remove(stored);
  size_.Forget();
  if (status.ok()) status = tables_->Write(&done, /*sync=*/true);
  if (!status.ok()) {
    write_failed_ = true;
    return AfterWrite(status);
  }
  absl::MutexLock lock(&mutex_);
  for (const PayloadTable::Chunks& payload : payloads) quarantine_.erase(payload.payload_id);
  return payloads.size();
}

absl::StatusOr<VerifyReport> RocksDbSegmentStorage::VerifyAll() {
  ASSIGN_OR_RETURN(VerifyReport report,
                   VerifyImages([this](const ManifestRow& row, std::span<std::byte> image) {
                     return AfterRead(row, ReadImage(row, image));
                   }));
  ASSIGN_OR_RETURN(report.damaged_contexts, CountDamagedContexts(tables_.get()));
  return report;
}

StorageStats RocksDbSegmentStorage::Stats() {
  const uint64_t physical_bytes = size_.Bytes();
  absl::MutexLock lock(&mutex_);
  StorageStats stats = stats_;
  AddTotals(&stats);
  stats.physical_bytes = physical_bytes;
  stats.quarantined = quarantine_.size();
  return stats;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SegmentStorage>> OpenRocksDbSegmentStorage(
    RocksDbStorageOptions options) {
  RETURN_IF_ERROR(CheckChunkBytes(options.chunk_bytes));
  ASSIGN_OR_RETURN(auto folder, StorageFolder::Open(options.folder));
  auto storage = std::make_unique<RocksDbSegmentStorage>(std::move(options), std::move(folder));
  RETURN_IF_ERROR(storage->Start());
  return storage;
}

}  // namespace retroinfer::kvstore
