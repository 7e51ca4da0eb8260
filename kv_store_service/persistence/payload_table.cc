#include "kv_store_service/persistence/payload_table.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/hash/crc32c.h"
#include "common/process/start_thread.h"
#include "common/status/status_macros.h"
#include "kv_store_service/persistence/rocksdb_status.h"
#include "kv_store_service/persistence/segment_codec.h"

namespace retroinfer::kvstore {
namespace {

constexpr uint32_t kMinChunkBytes = 4096;
constexpr uint32_t kMaxChunkBytes = 64u << 20;
constexpr uint32_t kChunksPerKeyCheck = 64;  // far fewer than share a block of keys
constexpr int kKeptBufferBytes = 16 << 20;
constexpr int kKeptFreeBytes = 64 << 20;
constexpr int kFlushAttempts = 100;
constexpr absl::Duration kFlushRetryInterval = absl::Milliseconds(20);

rocksdb::WriteOptions WithoutLog() {
  rocksdb::WriteOptions options;
  options.disableWAL = true;
  return options;
}

}  // namespace

absl::Status ForEachInParallel(const std::vector<uint32_t>& items, uint32_t max_threads,
                               const std::function<absl::Status(uint32_t)>& work) {
  std::atomic<size_t> next{0};
  std::atomic<bool> failed{false};
  absl::Mutex mutex;
  absl::Status error;  // guarded by mutex
  const auto run = [&] {
    while (!failed.load(std::memory_order_relaxed)) {
      const size_t i = next.fetch_add(1, std::memory_order_relaxed);
      if (i >= items.size()) return;
      absl::Status status = work(items[i]);
      if (status.ok()) continue;
      failed.store(true, std::memory_order_relaxed);
      absl::MutexLock lock(&mutex);
      if (error.ok() || absl::IsDataLoss(status)) error = std::move(status);
    }
  };
  const size_t num_threads = std::clamp<size_t>(items.size(), 1, std::max<size_t>(max_threads, 1));
  common::RunBeside(num_threads - 1, run);
  return error;
}

absl::Status CheckChunkBytes(uint32_t chunk_bytes) {
  if (chunk_bytes >= kMinChunkBytes && chunk_bytes <= kMaxChunkBytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("chunks have ", kMinChunkBytes, " to ",
                                                 kMaxChunkBytes, " bytes, not ", chunk_bytes));
}

void KeepReadBuffers() {
  // Either fails only where malloc has no such setting, and costs speed alone.
  (void)mallopt(M_MMAP_THRESHOLD, kKeptBufferBytes);
  (void)mallopt(M_TRIM_THRESHOLD, kKeptFreeBytes);
}

absl::StatusOr<std::vector<uint32_t>> PayloadTable::Write(uint64_t payload_id,
                                                          std::span<const std::byte> image,
                                                          uint32_t chunk_bytes,
                                                          const std::function<void()>& half_way) {
  std::vector<uint32_t> crcs;
  rocksdb::DB& db = tables_.db();
  bool told_half_way = false;
  for (size_t offset = 0; offset < image.size(); offset += chunk_bytes) {
    if (!told_half_way && offset >= image.size() / 2) {
      told_half_way = true;
      half_way();
    }
    const auto chunk = image.subspan(offset, std::min<size_t>(chunk_bytes, image.size() - offset));
    const std::string key = ChunkKey(payload_id, static_cast<uint32_t>(crcs.size()));
    const rocksdb::Slice value(reinterpret_cast<const char*>(chunk.data()), chunk.size());
    RETURN_IF_ERROR(RocksDbStatus(db.Put(WithoutLog(), tables_.handle(Table::kPayload), key, value),
                                  "writing a payload"));
    crcs.push_back(common::Crc32c(chunk));
  }
  RETURN_IF_ERROR(Flush());
  return crcs;
}

absl::Status PayloadTable::Flush() {
  rocksdb::DB& db = tables_.db();
  rocksdb::ColumnFamilyHandle* const table = tables_.handle(Table::kPayload);
  for (int attempt = 0; attempt < kFlushAttempts; ++attempt) {
    RETURN_IF_ERROR(RocksDbStatus(db.Flush(rocksdb::FlushOptions(), table), "syncing payloads"));
    // While RocksDB recovers from a full disk, Flush() returns OK before anything is written (seen
    // in 7.8). Nobody else writes payloads now, so what is left in memory is ours.
    uint64_t active_entries = 0;
    uint64_t waiting_tables = 0;
    if (db.GetIntProperty(table, rocksdb::DB::Properties::kNumEntriesActiveMemTable,
                          &active_entries) &&
        db.GetIntProperty(table, rocksdb::DB::Properties::kNumImmutableMemTable, &waiting_tables) &&
        active_entries == 0 && waiting_tables == 0) {
      return absl::OkStatus();
    }
    absl::SleepFor(kFlushRetryInterval);
  }
  return absl::UnavailableError("syncing payloads: the database still recovers from an error");
}

absl::Status PayloadTable::ReadChunk(uint64_t payload_id, uint32_t chunk_index,
                                     uint32_t expected_crc, bool check_keys,
                                     std::span<std::byte> chunk) {
  rocksdb::ReadOptions options;
  options.verify_checksums = check_keys;
  rocksdb::PinnableSlice value;
  const rocksdb::Status status = tables_.db().Get(options, tables_.handle(Table::kPayload),
                                                  ChunkKey(payload_id, chunk_index), &value);
  if (status.IsNotFound()) {
    return absl::DataLossError(absl::StrCat("chunk ", chunk_index, " of a payload is missing"));
  }
  RETURN_IF_ERROR(RocksDbStatus(status, absl::StrCat("reading chunk ", chunk_index)));
  if (value.size() != chunk.size()) {
    return absl::DataLossError(absl::StrCat("chunk ", chunk_index, " has ", value.size(),
                                            " bytes instead of ", chunk.size()));
  }
  std::memcpy(chunk.data(), value.data(), chunk.size());
  if (common::Crc32c(chunk) != expected_crc) {
    return absl::DataLossError(absl::StrCat("the checksum of chunk ", chunk_index, " is wrong"));
  }
  return absl::OkStatus();
}

absl::Status PayloadTable::Read(uint64_t payload_id, uint32_t chunk_bytes,
                                std::span<const uint32_t> chunk_crcs, std::span<std::byte> image) {
  if (chunk_crcs.size() != (image.size() + chunk_bytes - 1) / chunk_bytes) {
    return absl::DataLossError(absl::StrCat("there are checksums for ", chunk_crcs.size(),
                                            " chunks of a payload of ", image.size(), " bytes"));
  }
  // RocksDB checks a block of keys when it loads it, and must: it aborts on some damaged ones. Its
  // check of the payload, without the CPU's instruction in distributions' builds, costs more than
  // the reading; ours covers the same bytes. So a first pass over a few chunks, with all checks,
  // brings the blocks of this payload's keys into the cache, and the second pass goes without.
  std::vector<uint32_t> checked, others;
  for (uint32_t i = 0; i < chunk_crcs.size(); ++i) {
    const bool first_pass = i % kChunksPerKeyCheck == 0 || i + 1 == chunk_crcs.size();
    (first_pass ? checked : others).push_back(i);
  }
  for (const bool check_keys : {true, false}) {
    RETURN_IF_ERROR(
        ForEachInParallel(check_keys ? checked : others, read_threads_, [&](uint32_t index) {
          const size_t offset = size_t{index} * chunk_bytes;
          const size_t size = std::min<size_t>(chunk_bytes, image.size() - offset);
          return ReadChunk(payload_id, index, chunk_crcs[index], check_keys,
                           image.subspan(offset, size));
        }));
  }
  return absl::OkStatus();
}

absl::Status PayloadTable::Remove(std::span<const Chunks> payloads) {
  if (payloads.empty()) return absl::OkStatus();
  rocksdb::DB& db = tables_.db();
  rocksdb::ColumnFamilyHandle* const table = tables_.handle(Table::kPayload);
  uint64_t first = payloads.front().payload_id;
  uint64_t last = first;
  for (const Chunks& payload : payloads) {
    first = std::min(first, payload.payload_id);
    last = std::max(last, payload.payload_id);
    rocksdb::WriteBatch batch;
    for (uint64_t i = 0; i < payload.num_chunks; ++i) {
      batch.Delete(table, ChunkKey(payload.payload_id, static_cast<uint32_t>(i)));
    }
    RETURN_IF_ERROR(RocksDbStatus(db.Write(WithoutLog(), &batch), "deleting a payload"));
  }
  // Keys are few and small; compacting them tells RocksDB which blob files nothing refers to.
  RETURN_IF_ERROR(Flush());
  const std::string begin = ChunkKey(first, 0);
  const std::string end = ChunkKey(last + 1, 0);
  const rocksdb::Slice begin_slice(begin), end_slice(end);
  rocksdb::CompactRangeOptions options;
  options.exclusive_manual_compaction = false;
  options.bottommost_level_compaction = rocksdb::BottommostLevelCompaction::kForceOptimized;
  RETURN_IF_ERROR(RocksDbStatus(db.CompactRange(options, table, &begin_slice, &end_slice),
                                "reclaiming payloads"));
  // The pair deletes obsolete files before it returns.
  RETURN_IF_ERROR(RocksDbStatus(db.DisableFileDeletions(), "reclaiming payloads"));
  return RocksDbStatus(db.EnableFileDeletions(), "reclaiming payloads");
}

}  // namespace retroinfer::kvstore
