// The RocksDB database of the durable segment store: its tables and how it is set up.
#pragma once

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace retroinfer::kvstore {

// Column families. What is in them: segment_codec.h.
enum class Table { kManifest, kIndex, kPayload, kContexts, kUsage, kPending, kQuarantine };
inline constexpr size_t kNumTables = 7;

struct SegmentTablesOptions {
  uint64_t write_buffer_bytes = 64u << 20;  // of payload
  bool direct_reads = false;
  // Skip what is damaged in the write-ahead log instead of refusing to open.
  bool skip_damaged_log = false;
};

// Payloads go to blob files, without the write-ahead log and uncompressed: one flush writes them
// once. Everything else is small and goes through the log. Blob files are never rewritten; one is
// deleted when all its chunks are.
//
// Threads: all methods on any thread.
// Owns:    the database, which it closes.
class SegmentTables {
 public:
  // Opens or makes the database in `path`.
  //
  // Returns: DATA_LOSS if it is damaged.
  static absl::StatusOr<std::unique_ptr<SegmentTables>> Open(const std::string& path,
                                                             const SegmentTablesOptions& options);
  ~SegmentTables();
  SegmentTables(const SegmentTables&) = delete;
  SegmentTables& operator=(const SegmentTables&) = delete;

  rocksdb::DB& db() { return *db_; }
  rocksdb::ColumnFamilyHandle* handle(Table table) { return handles_[static_cast<size_t>(table)]; }

  // Returns the value of a key, or NOT_FOUND.
  absl::StatusOr<std::string> Get(Table table, std::string_view key);

  // Calls `visit` for each row of a table (not of kPayload), in the order of the keys.
  absl::Status ForEach(Table table,
                       const std::function<void(std::string_view, std::string_view)>& visit);

  // Writes a batch through the log; with `sync` it is durable when this returns. Without room on
  // the disk nothing is tried: RocksDB ends the process at the next write after one to its log that
  // failed.
  absl::Status Write(rocksdb::WriteBatch* batch, bool sync);

  // Moves everything from memory and the log into table files.
  absl::Status FlushAll();

  // Goes on after a write error whose cause may be gone. OK if there was none.
  absl::Status Resume();

  // Checks the checksums of all tables (not of the blob files). DATA_LOSS if one is wrong.
  absl::Status VerifyTables();

 private:
  explicit SegmentTables(std::string path) : path_(std::move(path)) {}

  const std::string path_;
  std::unique_ptr<rocksdb::DB> db_;
  std::array<rocksdb::ColumnFamilyHandle*, kNumTables> handles_{};
};

// Makes a Slice of any string-like thing.
inline rocksdb::Slice ToSlice(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view ToView(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

}  // namespace retroinfer::kvstore
