// Where the chunks of payloads lie in RocksDB's blob files.
//
// RocksDB returns a value as a whole. It tells a collector of table properties, for each key that
// it writes into a table, the *blob index* of its value: file, offset and size. The collector keeps
// these as properties of the table, so that parts of a chunk can be read from the blob file itself.
// Whoever reads there checks the bytes by checksums of our own: a place is a hint.
//
// A property belongs to a payload: `retroinfer.places.` and its id in 16 hexadecimal digits. Its
// value is a list of runs (little-endian):
//
//   OFFSET  SIZE  DESCRIPTION
//   0       8     number of the blob file
//   8       8     offset of the first chunk's bytes in it
//   16      8     from one chunk to the next
//   24      4     first chunk
//   28      4     number of chunks
//   32      4     bytes of each chunk
#pragma once

#include <rocksdb/table_properties.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kv_store_service/persistence/segment_tables.h"

namespace retroinfer::kvstore {

struct ChunkPlace {
  uint64_t file_number = 0;
  uint64_t offset = 0;
  uint32_t num_bytes = 0;
};

// Returns what RocksDB's table of payloads collects.
std::shared_ptr<rocksdb::TablePropertiesCollectorFactory> MakePlaceCollectorFactory();

// Returns the places of a payload's chunks in order; nothing unless those of all are known: tables
// that were written by earlier versions tell none.
std::optional<std::vector<ChunkPlace>> FindPlaces(SegmentTables* tables, uint64_t payload_id,
                                                  uint64_t num_chunks);

}  // namespace retroinfer::kvstore
