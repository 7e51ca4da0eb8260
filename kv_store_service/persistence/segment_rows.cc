#include "kv_store_service/persistence/segment_rows.h"

#include <span>
#include <string>

#include "absl/status/status.h"
#include "common/hash/crc32c.h"
#include "common/status/status_macros.h"

namespace retroinfer::kvstore {
namespace {

uint32_t CrcOf(const std::string& value) {
  return common::Crc32c(std::as_bytes(std::span(value.data(), value.size())));
}

}  // namespace

void AddSegmentRows(SegmentTables* tables, const IndexRow& index, ManifestRow* manifest,
                    rocksdb::WriteBatch* batch) {
  const SegmentName& name = manifest->record.name;
  const rocksdb::Slice key = ToSlice(name.view());
  const std::string index_value = EncodeIndex(name, index);
  manifest->index_crc = CrcOf(index_value);
  batch->Put(tables->handle(Table::kIndex), key, index_value);
  batch->Put(tables->handle(Table::kManifest), key, EncodeManifest(*manifest));
  batch->Put(tables->handle(Table::kUsage), key, EncodeUsage(name, manifest->record.last_use));
  RemovePendingRow(tables, manifest->payload_id, batch);
}

void AddPartsRow(SegmentTables* tables, const SegmentName& name, const PartsRow& parts,
                 rocksdb::WriteBatch* batch) {
  batch->Put(tables->handle(Table::kIndex), PartsKey(name), EncodeParts(name, parts));
}

void RemoveSegmentRows(SegmentTables* tables, const SegmentName& name, rocksdb::WriteBatch* batch) {
  for (Table table : {Table::kManifest, Table::kIndex, Table::kUsage}) {
    batch->Delete(tables->handle(table), ToSlice(name.view()));
  }
  batch->Delete(tables->handle(Table::kIndex), PartsKey(name));
}

void AddPendingRow(SegmentTables* tables, uint64_t payload_id, uint64_t num_chunks,
                   rocksdb::WriteBatch* batch) {
  batch->Put(tables->handle(Table::kPending), PayloadIdKey(payload_id),
             EncodePending(payload_id, num_chunks));
}

void RemovePendingRow(SegmentTables* tables, uint64_t payload_id, rocksdb::WriteBatch* batch) {
  batch->Delete(tables->handle(Table::kPending), PayloadIdKey(payload_id));
}

void AddQuarantineRow(SegmentTables* tables, const ManifestRow& segment, absl::Time when,
                      std::string_view reason, rocksdb::WriteBatch* batch) {
  batch->Put(tables->handle(Table::kQuarantine), PayloadIdKey(segment.payload_id),
             EncodeQuarantine({segment.record.name, segment.payload_id, segment.num_chunks(), when,
                               std::string(reason)}));
}

void AddUsageRows(SegmentTables* tables, std::span<const SegmentCatalog::Use> uses,
                  rocksdb::WriteBatch* batch) {
  for (const SegmentCatalog::Use& use : uses) {
    batch->Put(tables->handle(Table::kUsage), ToSlice(use.name.view()),
               EncodeUsage(use.name, use.last_use));
  }
}

absl::StatusOr<IndexRow> LoadIndexRow(SegmentTables* tables, const ManifestRow& manifest) {
  const std::string_view key = manifest.record.name.view();
  const auto value = tables->Get(Table::kIndex, key);
  if (absl::IsNotFound(value.status())) return absl::DataLossError("the index row is missing");
  RETURN_IF_ERROR(value.status());
  if (CrcOf(*value) != manifest.index_crc) {
    return absl::DataLossError("the index row is not the one that the manifest names");
  }
  ASSIGN_OR_RETURN(IndexRow index, DecodeIndex(key, *value));
  if (index.token_ids.size() != manifest.record.num_tokens ||
      index.chunk_crcs.size() != manifest.num_chunks()) {
    return absl::DataLossError("the index row does not fit the manifest");
  }
  return index;
}

std::optional<PartsRow> LoadPartsRow(SegmentTables* tables, const ManifestRow& manifest) {
  const std::string key = PartsKey(manifest.record.name);
  const auto value = tables->Get(Table::kIndex, key);
  if (!value.ok()) return std::nullopt;
  auto parts = DecodeParts(key, *value);
  if (!parts.ok() || parts->payload_id != manifest.payload_id ||
      manifest.chunk_bytes % parts->part_bytes != 0) {
    return std::nullopt;
  }
  const uint64_t bytes = manifest.record.image_bytes;
  if (parts->part_crcs.size() != (bytes + parts->part_bytes - 1) / parts->part_bytes) {
    return std::nullopt;
  }
  return *std::move(parts);
}

absl::StatusOr<uint64_t> CountDamagedContexts(SegmentTables* tables) {
  uint64_t damaged = 0;
  RETURN_IF_ERROR(
      tables->ForEach(Table::kContexts, [&damaged](std::string_view key, std::string_view value) {
        if (!DecodeContext(key, value).ok()) ++damaged;
      }));
  return damaged;
}

}  // namespace retroinfer::kvstore
