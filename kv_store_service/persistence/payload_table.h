// Payloads of segments, cut into chunks that RocksDB keeps in blob files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kv_store_service/persistence/segment_tables.h"

namespace retroinfer::kvstore {

// Lets malloc keep the buffers of chunks that a read gives back, instead of returning them to the
// system and paying page faults for the next ones: that doubles the bandwidth of reads from the
// page cache. It holds for the whole process: programs call it once, at their start.
void KeepReadBuffers();

// INVALID_ARGUMENT unless payloads may be cut into chunks of this size: 4 KiB to 64 MiB.
absl::Status CheckChunkBytes(uint32_t chunk_bytes);

// Calls `work` for each item, on up to `max_threads` threads, until one fails. Damage is the more
// important news: it takes the segment out of use.
absl::Status ForEachInParallel(const std::vector<uint32_t>& items, uint32_t max_threads,
                               const std::function<absl::Status(uint32_t)>& work);

// Threads: Read() and ReadChunk() on any thread; the others one at a time.
class PayloadTable {
 public:
  struct Chunks {
    uint64_t payload_id = 0;
    uint64_t num_chunks = 0;
  };

  // REQUIRES: `tables` outlives this object; read_threads > 0.
  PayloadTable(SegmentTables* tables, uint32_t read_threads)
      : tables_(*tables), read_threads_(read_threads) {}

  // Writes `image` under a new id and makes it durable. `half_way` runs after half of the chunks.
  // Returns the CRC-32C of each chunk.
  absl::StatusOr<std::vector<uint32_t>> Write(uint64_t payload_id, std::span<const std::byte> image,
                                              uint32_t chunk_bytes,
                                              const std::function<void()>& half_way);

  // Reads a payload into `image` with several threads and checks every chunk.
  //
  // Returns: DATA_LOSS if a chunk is missing or fails its check; INTERNAL for an I/O error. The
  //          bytes of `image` are unspecified then.
  absl::Status Read(uint64_t payload_id, uint32_t chunk_bytes, std::span<const uint32_t> chunk_crcs,
                    std::span<std::byte> image);

  // Reads one chunk into `chunk` and checks it; with `check_keys` also the database's own rows.
  //
  // REQUIRES: chunk.size() is that of the chunk.
  // Returns:  as Read().
  absl::Status ReadChunk(uint64_t payload_id, uint32_t chunk_index, uint32_t expected_crc,
                         bool check_keys, std::span<std::byte> chunk);

  // Removes payloads and returns their room to the file system.
  absl::Status Remove(std::span<const Chunks> payloads);

 private:
  // Makes durable what was written; checks that nothing is left in memory.
  absl::Status Flush();

  SegmentTables& tables_;
  const uint32_t read_threads_;
};

}  // namespace retroinfer::kvstore
