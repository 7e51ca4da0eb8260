// How many rows the database must at least have, kept beside it.
//
// A database that loses its newest changes to damage can look like one whose process died before it
// made them. The file tells the two apart. It never claims more than what is durable: a count is
// raised after the rows were written, and lowered, durably, before they are removed.
//
//   OFFSET  SIZE  DESCRIPTION
//   0       8     "RTRICNT1"
//   8       8     segments, little-endian
//   16      8     contexts
//   24      4     CRC-32C of the bytes before
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/shm/unique_fd.h"
#include "kv_store_service/persistence/segment_catalog.h"

namespace retroinfer::kvstore {

struct RowCounts {
  uint64_t segments = 0;
  uint64_t contexts = 0;

  friend bool operator==(const RowCounts&, const RowCounts&) = default;
};

// Returns what the bytes of the file say; nothing if there are none; DATA_LOSS if they are damaged.
absl::StatusOr<std::optional<RowCounts>> ParseRowCounts(std::span<const std::byte> bytes);

// Threads: one at a time.
// Owns:    the file's descriptor.
class RowWitness {
 public:
  // Opens the file, making it if there is none. `catalog` knows what there is now, and outlives
  // this object.
  static absl::StatusOr<RowWitness> Open(const std::string& path, const SegmentCatalog* catalog);

  // Returns what was written last; nothing in a new file; DATA_LOSS if it is damaged.
  absl::StatusOr<std::optional<RowCounts>> Read() const;

  // Returns how many rows are missing in the catalog besides those that were found `damaged`; 1 if
  // the file itself is damaged.
  uint64_t CountLost(const RowCounts& damaged) const;

  // Writes the catalog's counts. If that fails, the file says less than there is, which is true.
  void Raise();

  // Writes the catalog's counts less `removed`, durably: to be called before rows are removed.
  absl::Status Lower(const RowCounts& removed);

 private:
  RowWitness(std::string path, common::UniqueFd file, const SegmentCatalog* catalog)
      : path_(std::move(path)), file_(std::move(file)), catalog_(catalog) {}
  absl::Status Write(const RowCounts& counts, bool sync);

  std::string path_;
  common::UniqueFd file_;
  const SegmentCatalog* catalog_;
};

}  // namespace retroinfer::kvstore
