// What happens when the durable segment store is opened: rows are read and checked, and what an
// earlier process left unfinished is cleaned up.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kv_store_service/persistence/payload_table.h"
#include "kv_store_service/persistence/segment_catalog.h"
#include "kv_store_service/persistence/segment_codec.h"
#include "kv_store_service/persistence/segment_tables.h"

namespace retroinfer::kvstore {

struct RecoveredRows {
  std::map<uint64_t, QuarantineRow> quarantine;  // by payload id
  uint64_t next_payload_id = 1;                  // above every id in use
  uint64_t corrupt_rows = 0;                     // found and taken out of use
  uint64_t corrupt_segments = 0;                 // of those, manifests
  uint64_t corrupt_contexts = 0;                 // of those, contexts
  uint64_t orphans_removed = 0;                  // payloads
};

// Reads all rows into `catalog`. A manifest row that fails its check goes into quarantine; other
// damaged rows are deleted: a use that is lost makes a segment look older, a context that is lost
// has to be named again. Payloads that no manifest has are removed: those that have a pending row,
// and, with `sweep` (the last process died) or if rows that hold payload ids were damaged, those
// that are found by looking at every gap between the ids in use.
absl::StatusOr<RecoveredRows> RecoverRows(SegmentTables* tables, PayloadTable* payloads,
                                          SegmentCatalog* catalog, bool sweep, absl::Time now);

// Copies every segment and context that is intact from a damaged database to `target`, skipping
// what cannot be read. Returns the number of segments copied.
absl::StatusOr<uint64_t> SalvageDatabase(const std::string& path, SegmentStorage* target);
void SalvageAndLog(const std::string& path, SegmentStorage* target);

}  // namespace retroinfer::kvstore
