// Segment storage in RocksDB.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "kv_store_service/persistence/segment_storage.h"

namespace retroinfer::kvstore {

struct RocksDbStorageOptions {
  std::string folder;                 // created with mode 0700 if it is missing
  uint32_t chunk_bytes = 256u << 10;  // of payload, each with its own checksum; 4 KiB to 64 MiB
  uint32_t read_threads = 4;          // for one Read(); at most one for each chunk
  // Bypass the page cache where the file system can: restores from a cold disk are faster, and the
  // memory is the arena's.
  bool direct_reads = true;
  uint64_t write_buffer_bytes = 64u << 20;  // of payload held in memory before it goes to disk
  // Put() refuses when less than this would be left on the disk: a database without room to write
  // cannot delete either.
  uint64_t reserve_bytes = 256u << 20;
  StorageStageHook on_stage;  // may be empty
};

// Opens the storage in `options.folder`, making it if there is none. Payloads without a manifest
// are removed. If the database in it is damaged beyond use, it is moved aside inside the folder
// (`damaged-N`), counted, and a new one is made.
//
// Returns: FAILED_PRECONDITION another process (its id is in the message) uses the folder, or it
//          was written by a newer version; PERMISSION_DENIED the folder cannot be written, or
//          belongs to somebody else; RESOURCE_EXHAUSTED no room.
absl::StatusOr<std::unique_ptr<SegmentStorage>> OpenRocksDbSegmentStorage(
    RocksDbStorageOptions options);

}  // namespace retroinfer::kvstore
