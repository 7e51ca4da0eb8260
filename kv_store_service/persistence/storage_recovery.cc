#include "kv_store_service/persistence/storage_recovery.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "common/hash/crc32c.h"
#include "common/status/status_macros.h"

namespace retroinfer::kvstore {
namespace {

// Payload ids of quarantine rows that stand for manifests whose own id cannot be read.
constexpr uint64_t kFirstUnknownPayload = std::numeric_limits<uint64_t>::max() - (1u << 30);

// Reads the rows of one database and collects what has to be written about them.
class RowLoader {
 public:
  RowLoader(SegmentTables* tables, SegmentCatalog* catalog, bool sweep, absl::Time now)
      : tables_(*tables), catalog_(*catalog), sweep_(sweep), now_(now) {}

  absl::Status Load() {
    RETURN_IF_ERROR(LoadQuarantine());
    RETURN_IF_ERROR(LoadManifests());
    RETURN_IF_ERROR(LoadUsage());
    RETURN_IF_ERROR(LoadContexts());
    RETURN_IF_ERROR(LoadPending());
    if (repairs_.Count() == 0) return absl::OkStatus();
    return tables_.Write(&repairs_, /*sync=*/true);
  }

  RecoveredRows& rows() { return rows_; }
  const std::vector<PayloadTable::Chunks>& pending() const { return pending_; }
  bool sweep() const { return sweep_; }

 private:
  void DropDamaged(Table table, std::string_view key) {
    ++rows_.corrupt_rows;
    repairs_.Delete(tables_.handle(table), ToSlice(key));
  }

  void Use(uint64_t payload_id) {
    if (payload_id >= kFirstUnknownPayload) {
      next_unknown_ = std::max(next_unknown_, payload_id + 1);
    } else {
      rows_.next_payload_id = std::max(rows_.next_payload_id, payload_id + 1);
    }
  }

  absl::Status LoadQuarantine() {
    return tables_.ForEach(Table::kQuarantine,
                           [this](std::string_view key, std::string_view value) {
                             auto row = DecodeQuarantine(key, value);
                             if (!row.ok()) {
                               sweep_ = true;
                               return DropDamaged(Table::kQuarantine, key);
                             }
                             Use(row->payload_id);
                             rows_.quarantine.emplace(row->payload_id, *std::move(row));
                           });
  }

  absl::Status LoadManifests() {
    return tables_.ForEach(Table::kManifest, [this](std::string_view key, std::string_view value) {
      const auto row = DecodeManifest(key, value);
      if (row.ok()) {
        Use(row->payload_id);
        catalog_.Insert(*row);
        return;
      }
      sweep_ = true;
      DropDamaged(Table::kManifest, key);
      ++rows_.corrupt_segments;
      repairs_.Delete(tables_.handle(Table::kIndex), ToSlice(key));
      repairs_.Delete(tables_.handle(Table::kUsage), ToSlice(key));
      QuarantineRow aside;
      if (const auto name = Hash256::FromBytes(key); name.ok()) aside.name = *name;
      aside.payload_id = next_unknown_++;
      aside.when = now_;
      aside.reason = std::string(row.status().message());
      repairs_.Put(tables_.handle(Table::kQuarantine), PayloadIdKey(aside.payload_id),
                   EncodeQuarantine(aside));
      rows_.quarantine.emplace(aside.payload_id, std::move(aside));
    });
  }

  absl::Status LoadUsage() {
    RETURN_IF_ERROR(
        tables_.ForEach(Table::kUsage, [this](std::string_view key, std::string_view value) {
          const auto name = Hash256::FromBytes(key);
          const auto last_use = DecodeUsage(key, value);
          if (!name.ok() || !last_use.ok()) return DropDamaged(Table::kUsage, key);
          catalog_.Touch({&*name, 1}, *last_use);
        }));
    catalog_.TakeTouched();  // they are on disk
    return absl::OkStatus();
  }

  absl::Status LoadContexts() {
    return tables_.ForEach(Table::kContexts, [this](std::string_view key, std::string_view value) {
      const auto context = DecodeContext(key, value);
      if (!context.ok()) {
        ++rows_.corrupt_contexts;
        return DropDamaged(Table::kContexts, key);
      }
      catalog_.PutContext(*context);
    });
  }

  absl::Status LoadPending() {
    return tables_.ForEach(Table::kPending, [this](std::string_view key, std::string_view value) {
      const auto payload_id = ParsePayloadIdKey(key);
      const auto num_chunks = DecodePending(key, value);
      if (!payload_id.ok() || !num_chunks.ok()) {
        sweep_ = true;
        return DropDamaged(Table::kPending, key);
      }
      Use(*payload_id);
      pending_.push_back({*payload_id, *num_chunks});
    });
  }

  SegmentTables& tables_;
  SegmentCatalog& catalog_;
  bool sweep_;
  const absl::Time now_;
  RecoveredRows rows_;
  std::vector<PayloadTable::Chunks> pending_;
  uint64_t next_unknown_ = kFirstUnknownPayload;
  rocksdb::WriteBatch repairs_;
};

// Finds the payloads whose ids are not in use.
class OrphanFinder {
 public:
  explicit OrphanFinder(SegmentTables* tables) : tables_(*tables) {}

  // Looks at the ids in [begin, end). Reads only chunks that no manifest has: none, normally.
  void Look(uint64_t begin, uint64_t end) {
    if (begin >= end) return;
    const std::string upper_key = PayloadIdKey(end);
    const rocksdb::Slice upper(upper_key);
    rocksdb::ReadOptions options;
    options.iterate_upper_bound = &upper;
    options.fill_cache = false;
    const std::unique_ptr<rocksdb::Iterator> chunk(
        tables_.db().NewIterator(options, tables_.handle(Table::kPayload)));
    for (chunk->Seek(PayloadIdKey(begin)); chunk->Valid(); chunk->Next()) {
      const std::string_view key = ToView(chunk->key());
      if (key.size() < 8) continue;
      const uint64_t payload_id = *ParsePayloadIdKey(key.substr(0, 8));
      if (orphans_.empty() || orphans_.back().payload_id != payload_id) {
        orphans_.push_back({payload_id, 0});
      }
      ++orphans_.back().num_chunks;
    }
    // A chunk that cannot be read does not matter: it stays where it is and nobody asks for it.
    chunk->status().PermitUncheckedError();
  }

  const std::vector<PayloadTable::Chunks>& orphans() const { return orphans_; }

 private:
  SegmentTables& tables_;
  std::vector<PayloadTable::Chunks> orphans_;
};

std::vector<PayloadTable::Chunks> FindOrphans(SegmentTables* tables, const SegmentCatalog& catalog,
                                              const RecoveredRows& rows) {
  std::vector<uint64_t> used;
  for (const ManifestRow& row : catalog.List()) used.push_back(row.payload_id);
  for (const auto& [payload_id, row] : rows.quarantine) used.push_back(payload_id);
  std::sort(used.begin(), used.end());
  OrphanFinder finder(tables);
  uint64_t begin = 0;
  for (uint64_t payload_id : used) {
    finder.Look(begin, payload_id);
    begin = payload_id + 1;
  }
  finder.Look(begin, std::numeric_limits<uint64_t>::max());
  return finder.orphans();
}

absl::Status ForgetPending(SegmentTables* tables,
                           const std::vector<PayloadTable::Chunks>& payloads) {
  rocksdb::WriteBatch batch;
  for (const PayloadTable::Chunks& payload : payloads) {
    batch.Delete(tables->handle(Table::kPending), PayloadIdKey(payload.payload_id));
  }
  return tables->Write(&batch, /*sync=*/false);
}

}  // namespace

absl::StatusOr<RecoveredRows> RecoverRows(SegmentTables* tables, PayloadTable* payloads,
                                          SegmentCatalog* catalog, bool sweep, absl::Time now) {
  RowLoader loader(tables, catalog, sweep, now);
  RETURN_IF_ERROR(loader.Load());
  RecoveredRows& rows = loader.rows();
  if (!loader.pending().empty()) {
    RETURN_IF_ERROR(payloads->Remove(loader.pending()));
    RETURN_IF_ERROR(ForgetPending(tables, loader.pending()));
    rows.orphans_removed = loader.pending().size();
  }
  if (loader.sweep()) {
    const std::vector<PayloadTable::Chunks> orphans = FindOrphans(tables, *catalog, rows);
    RETURN_IF_ERROR(payloads->Remove(orphans));
    rows.orphans_removed += orphans.size();
    for (const PayloadTable::Chunks& orphan : orphans) {
      rows.next_payload_id = std::max(rows.next_payload_id, orphan.payload_id + 1);
    }
  }
  return std::move(rows);
}

namespace {

// Visits the rows of a table and passes over blocks that cannot be read. Keys are uniform hashes:
// behind a bad block the next good one is found by doubling steps from the last key.
void ForEachReadable(SegmentTables* tables, Table table,
                     const std::function<void(std::string_view, std::string_view)>& visit) {
  uint64_t begin = 0;  // first 8 bytes of the next key
  uint64_t step = uint64_t{1} << 40;
  std::string last_key;
  while (true) {
    const std::unique_ptr<rocksdb::Iterator> row(
        tables->db().NewIterator(rocksdb::ReadOptions(), tables->handle(table)));
    for (row->Seek(PayloadIdKey(begin)); row->Valid(); row->Next()) {
      if (!last_key.empty() && ToView(row->key()) <= last_key) continue;
      last_key = row->key().ToString();
      step = uint64_t{1} << 40;
      visit(last_key, ToView(row->value()));
    }
    if (row->status().ok()) return;
    if (last_key.size() >= 8) {
      begin = std::max(begin, *ParsePayloadIdKey(std::string_view(last_key).substr(0, 8)));
    }
    if (begin > std::numeric_limits<uint64_t>::max() - step) return;
    begin += step;
    step = step > (uint64_t{1} << 62) ? step : step * 2;
  }
}

absl::Status CopySegment(SegmentTables* source, PayloadTable* payloads, const ManifestRow& row,
                         SegmentStorage* target) {
  ASSIGN_OR_RETURN(const std::string value, source->Get(Table::kIndex, row.record.name.view()));
  ASSIGN_OR_RETURN(const IndexRow index, DecodeIndex(row.record.name.view(), value));
  std::vector<std::byte> image(row.record.image_bytes);
  RETURN_IF_ERROR(payloads->Read(row.payload_id, row.chunk_bytes, index.chunk_crcs, image));
  return target->Put(row.record, index.token_ids, image);
}

}  // namespace

absl::StatusOr<uint64_t> SalvageDatabase(const std::string& path, SegmentStorage* target) {
  SegmentTablesOptions options;
  options.skip_damaged_log = true;
  ASSIGN_OR_RETURN(const auto source, SegmentTables::Open(path, options));
  PayloadTable payloads(source.get(), /*read_threads=*/2);
  uint64_t copied = 0;
  absl::Status stopped;
  ForEachReadable(source.get(), Table::kManifest,
                  [&](std::string_view key, std::string_view value) {
                    auto row = DecodeManifest(key, value);
                    if (!row.ok() || !stopped.ok()) return;
                    if (const auto usage = source->Get(Table::kUsage, key); usage.ok()) {
                      const auto last_use = DecodeUsage(key, *usage);
                      if (last_use.ok()) row->record.last_use = *last_use;
                    }
                    const absl::Status status = CopySegment(source.get(), &payloads, *row, target);
                    if (status.ok()) ++copied;
                    if (absl::IsResourceExhausted(status)) stopped = status;
                  });
  ForEachReadable(source.get(), Table::kContexts,
                  [&](std::string_view key, std::string_view value) {
                    auto context = DecodeContext(key, value);
                    // A context with a lost segment is not worth its name: NOT_FOUND is what its
                    // user must see.
                    if (context.ok()) target->PutContext(*context).IgnoreError();
                  });
  RETURN_IF_ERROR(stopped);
  return copied;
}

void SalvageAndLog(const std::string& path, SegmentStorage* target) {
  const auto salvaged = SalvageDatabase(path, target);
  if (salvaged.ok()) {
    spdlog::warn("durable segments: {} intact segments were copied", *salvaged);
  } else {
    spdlog::warn("durable segments: not everything could be copied: {}",
                 salvaged.status().ToString());
  }
}

}  // namespace retroinfer::kvstore
