#include "kv_store_service/persistence/segment_tables.h"

#include <rocksdb/cache.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <sys/stat.h>

#include <utility>
#include <vector>

#include "common/files/regular_file.h"
#include "common/status/status_macros.h"
#include "kv_store_service/persistence/chunk_places.h"
#include "kv_store_service/persistence/rocksdb_log.h"
#include "kv_store_service/persistence/rocksdb_status.h"

namespace retroinfer::kvstore {
namespace {

constexpr std::array<const char*, kNumTables> kTableNames = {
    "default", "index", "payload", "contexts", "usage", "pending", "quarantine"};
constexpr uint64_t kSmallWriteBufferBytes = 4u << 20;
constexpr uint64_t kLogRoom = 256u << 10;  // that a write needs besides its own bytes
constexpr uint64_t kMaxLogBytes = 16u << 20;
constexpr uint64_t kBlobFileBytes = uint64_t{1} << 30;
constexpr size_t kPayloadBlockBytes = 64u << 10;
constexpr size_t kPayloadCacheBytes = 64u << 20;
constexpr int kMaxOpenFiles = 512;

rocksdb::DBOptions DatabaseOptions(const SegmentTablesOptions& options) {
  rocksdb::DBOptions db;
  db.create_if_missing = true;
  db.create_missing_column_families = true;
  db.wal_recovery_mode = options.skip_damaged_log
                             ? rocksdb::WALRecoveryMode::kSkipAnyCorruptedRecords
                             : rocksdb::WALRecoveryMode::kTolerateCorruptedTailRecords;
  db.max_total_wal_size = kMaxLogBytes;
  db.max_open_files = kMaxOpenFiles;
  db.max_background_jobs = 2;
  db.use_direct_reads = options.direct_reads;
  db.bytes_per_sync = 8u << 20;  // spreads the write-back, so that a sync is short
  db.allow_fallocate = false;    // the cap counts allocated bytes
  db.info_log = MakeRocksDbLog();
  db.info_log_level = rocksdb::InfoLogLevel::WARN_LEVEL;
  db.stats_dump_period_sec = 0;
  db.stats_persist_period_sec = 0;
  return db;
}

rocksdb::ColumnFamilyOptions TableOptions(Table table, const SegmentTablesOptions& options,
                                          const std::shared_ptr<rocksdb::Cache>& cache) {
  rocksdb::ColumnFamilyOptions family;
  family.compression = rocksdb::kNoCompression;
  family.write_buffer_size = kSmallWriteBufferBytes;
  rocksdb::BlockBasedTableOptions blocks;
  blocks.block_cache = cache;
  family.table_factory.reset(rocksdb::NewBlockBasedTableFactory(blocks));
  if (table == Table::kPayload) {
    // Keys only. Large blocks, so that the chunks of a segment share few, and a cache of their own,
    // so that what was checked once stays: see PayloadTable::Read().
    blocks.block_size = kPayloadBlockBytes;
    blocks.block_cache = rocksdb::NewLRUCache(kPayloadCacheBytes);
    family.table_factory.reset(rocksdb::NewBlockBasedTableFactory(blocks));
    family.write_buffer_size = options.write_buffer_bytes;
    family.max_write_buffer_number = 3;
    family.enable_blob_files = true;
    family.min_blob_size = 0;
    family.blob_file_size = kBlobFileBytes;
    family.blob_compression_type = rocksdb::kNoCompression;
    family.enable_blob_garbage_collection = false;
    family.table_properties_collector_factories.push_back(MakePlaceCollectorFactory());
  }
  return family;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SegmentTables>> SegmentTables::Open(
    const std::string& path, const SegmentTablesOptions& options) {
  const std::shared_ptr<rocksdb::Cache> cache = rocksdb::NewLRUCache(8u << 20);
  std::vector<rocksdb::ColumnFamilyDescriptor> families;
  for (size_t i = 0; i < kNumTables; ++i) {
    families.emplace_back(kTableNames[i], TableOptions(static_cast<Table>(i), options, cache));
  }
  std::unique_ptr<SegmentTables> tables(new SegmentTables(path));
  // RocksDB lists the folder before it makes one, and would warn at every first start. What keeps
  // the folder from being made keeps RocksDB from it, too, and is told by it.
  ::mkdir(path.c_str(), 0700);
  rocksdb::DB* db = nullptr;
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  const rocksdb::Status opened =
      rocksdb::DB::Open(DatabaseOptions(options), path, families, &handles, &db);
  if (opened.IsInvalidArgument() || opened.IsNotSupported()) {
    // The arguments are ours and right: what is in the folder does not fit them.
    return absl::DataLossError("opening " + path + ": " + opened.ToString());
  }
  RETURN_IF_ERROR(RocksDbStatus(opened, "opening " + path));
  tables->db_.reset(db);
  // RocksDB starts its threads with their first work, and aborts if there are none to be had then.
  for (const auto priority : {rocksdb::Env::Priority::HIGH, rocksdb::Env::Priority::LOW}) {
    rocksdb::Env::Default()->Schedule([](void*) {}, nullptr, priority);
  }
  std::copy(handles.begin(), handles.end(), tables->handles_.begin());
  return tables;
}

SegmentTables::~SegmentTables() {
  if (db_ == nullptr) return;
  for (rocksdb::ColumnFamilyHandle* handle : handles_) {
    db_->DestroyColumnFamilyHandle(handle).PermitUncheckedError();
  }
  db_->Close().PermitUncheckedError();
}

absl::StatusOr<std::string> SegmentTables::Get(Table table, std::string_view key) {
  std::string value;
  RETURN_IF_ERROR(RocksDbStatus(
      db_->Get(rocksdb::ReadOptions(), handle(table), ToSlice(key), &value), "reading a row"));
  return value;
}

absl::Status SegmentTables::ForEach(
    Table table, const std::function<void(std::string_view, std::string_view)>& visit) {
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  const std::unique_ptr<rocksdb::Iterator> row(db_->NewIterator(options, handle(table)));
  for (row->SeekToFirst(); row->Valid(); row->Next())
    visit(ToView(row->key()), ToView(row->value()));
  return RocksDbStatus(row->status(), "scanning a table");
}

absl::Status SegmentTables::Write(rocksdb::WriteBatch* batch, bool sync) {
  RETURN_IF_ERROR(common::RequireRoom(path_, kLogRoom + 2 * batch->GetDataSize()));
  rocksdb::WriteOptions options;
  options.sync = sync;
  return RocksDbStatus(db_->Write(options, batch), "writing rows");
}

absl::Status SegmentTables::FlushAll() {
  const std::vector<rocksdb::ColumnFamilyHandle*> all(handles_.begin(), handles_.end());
  return RocksDbStatus(db_->Flush(rocksdb::FlushOptions(), all), "flushing tables");
}

absl::Status SegmentTables::Resume() { return RocksDbStatus(db_->Resume(), "resuming writes"); }

absl::Status SegmentTables::VerifyTables() {
  return RocksDbStatus(db_->VerifyChecksum(), "checking tables");
}

}  // namespace retroinfer::kvstore
