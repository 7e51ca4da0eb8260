// Translates rocksdb::Status into absl::Status. The only place that does.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace rocksdb {
class Status;
}

namespace retroinfer::kvstore {

// Returns OK for OK, else "`what`: <RocksDB's words>". No space, space limit -> RESOURCE_EXHAUSTED;
// NotFound -> NOT_FOUND; Corruption, a missing file -> DATA_LOSS; Busy, TryAgain, TimedOut,
// ShutdownInProgress -> UNAVAILABLE; others, I/O errors among them -> INTERNAL.
absl::Status RocksDbStatus(const rocksdb::Status& status, std::string_view what);

}  // namespace retroinfer::kvstore
