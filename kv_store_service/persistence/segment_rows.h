// The rows that make up a segment in the database, put together and taken apart.
#pragma once

#include <rocksdb/write_batch.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kv_store_service/persistence/segment_catalog.h"
#include "kv_store_service/persistence/segment_codec.h"
#include "kv_store_service/persistence/segment_tables.h"

namespace retroinfer::kvstore {

// Adds to `batch` what brings a segment into being: manifest, index and usage row, and the end of
// its payload's pending row. Sets manifest->index_crc.
void AddSegmentRows(SegmentTables* tables, const IndexRow& index, ManifestRow* manifest,
                    rocksdb::WriteBatch* batch);

// Adds to `batch` the checksums of the parts of a segment's image.
void AddPartsRow(SegmentTables* tables, const SegmentName& name, const PartsRow& parts,
                 rocksdb::WriteBatch* batch);

// Adds to `batch` what makes a segment vanish. Its payload is another matter.
void RemoveSegmentRows(SegmentTables* tables, const SegmentName& name, rocksdb::WriteBatch* batch);

// Add or remove the row that says that nobody owns a payload, or nobody yet.
void AddPendingRow(SegmentTables* tables, uint64_t payload_id, uint64_t num_chunks,
                   rocksdb::WriteBatch* batch);
void RemovePendingRow(SegmentTables* tables, uint64_t payload_id, rocksdb::WriteBatch* batch);

// Add to `batch` that a segment is in quarantine, and newer uses of segments.
void AddQuarantineRow(SegmentTables* tables, const ManifestRow& segment, absl::Time when,
                      std::string_view reason, rocksdb::WriteBatch* batch);
void AddUsageRows(SegmentTables* tables, std::span<const SegmentCatalog::Use> uses,
                  rocksdb::WriteBatch* batch);

// Reads the index row of a segment. DATA_LOSS unless it is the one that the manifest names.
absl::StatusOr<IndexRow> LoadIndexRow(SegmentTables* tables, const ManifestRow& manifest);

// Reads the checksums of the parts of a segment's image; nothing if there are none, or not those of
// the manifest's payload: segments that earlier versions wrote have none.
std::optional<PartsRow> LoadPartsRow(SegmentTables* tables, const ManifestRow& manifest);

// Returns how many rows of contexts cannot be decoded.
absl::StatusOr<uint64_t> CountDamagedContexts(SegmentTables* tables);

}  // namespace retroinfer::kvstore
