// Durable copies of committed segments and blocks, and the names that users gave to prefixes.
//
// A *record* describes a segment or a block, its *image* is what common/kv/segment_layout.h or
// block_layout.h lays out. An image is put as a whole and read as a whole; every byte that is read
// back was checked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/hash/segment_name.h"
#include "kv_store_service/persistence/image_parts.h"

namespace retroinfer::kvstore {

using common::Hash256;
using common::SegmentName;

// What a storage knows about a segment without reading it.
struct SegmentRecord {
  SegmentName name;
  SegmentName parent;        // SegmentIdentity::parent
  SegmentName root;          // common::RootName()
  Hash256 fingerprint_hash;  // of the model, for listing
  Hash256 salt_hash;         // the tenant
  uint64_t token_begin = 0;  // position in the sequence of its first token
  uint32_t num_tokens = 0;
  uint64_t image_bytes = 0;
  absl::Time created;   // microseconds survive
  absl::Time last_use;  // microseconds survive; see SegmentStorage::Touch()
  std::optional<common::Provenance> provenance = std::nullopt;  // set: generated

  friend bool operator==(const SegmentRecord&, const SegmentRecord&) = default;
};

// A prefix that a user has named, to find it again or to keep it.
struct ContextRecord {
  std::string context_name;             // 1 to kMaxContextNameBytes bytes, unique for its tenant
  Hash256 salt_hash;                    // the tenant
  SegmentName root;                     // of its segments
  std::vector<SegmentName> segments;    // in the order of their tokens; at most 65536
  std::vector<int32_t> sink_token_ids;  // before the first segment: what its parent is made of
  uint64_t num_tokens = 0;              // of the prefix, the sink and an unsegmented tail included
  bool pinned = false;                  // its segments are never evicted
  absl::Time created;
  absl::Time expires = absl::InfiniteFuture();  // after it the name is gone and pins nothing

  friend bool operator==(const ContextRecord&, const ContextRecord&) = default;
};
inline constexpr size_t kMaxContextNameBytes = 256;
inline constexpr size_t kMaxContextSegments = 65536;
// All contexts are in memory, and whoever may call can make more.
inline constexpr size_t kMaxContexts = 65536;
inline constexpr size_t kMaxContextsOfTenant = 4096;
inline constexpr size_t kMaxContextReferences = 1 << 20;  // segments of all contexts

struct VerifyReport {
  uint64_t segments_checked = 0;
  uint64_t bytes_checked = 0;        // of images
  std::vector<SegmentName> corrupt;  // moved into quarantine by this call
  uint64_t damaged_contexts = 0;     // names that could not be decoded
};

// Gauges and, since the storage was opened, counters (_total).
struct StorageStats {
  uint64_t segments = 0;
  uint64_t contexts = 0;
  uint64_t image_bytes = 0;     // of all segments
  uint64_t physical_bytes = 0;  // on disk, everything included
  uint64_t quarantined = 0;     // kept aside
  uint64_t puts_total = 0;
  uint64_t put_bytes_total = 0;
  uint64_t reads_total = 0;
  uint64_t read_bytes_total = 0;
  uint64_t deletes_total = 0;
  uint64_t corrupt_total = 0;           // records or images that failed a check
  uint64_t token_mismatches_total = 0;  // a name matched and its tokens did not
  uint64_t orphans_removed_total = 0;   // payloads without a manifest, found at open
  uint64_t write_errors_total = 0;
  uint64_t read_errors_total = 0;     // I/O errors, not corruption
  uint64_t damaged_stores_total = 0;  // whole stores that could not be opened and were set aside
};

// Where a Put() or Delete() has got to. Each stage is reported when everything before it is done.
enum class StorageStage {
  kPutBegun,         // the intent is durable, no payload yet
  kPutHalfPayload,   // about half of the payload is written, not synced
  kPutPayload,       // the payload is durable, the segment does not exist yet
  kPutCommitted,     // the segment is durable, the caller does not know it yet
  kDeleteCommitted,  // the segment is no longer durable, its payload is; readers may not know yet
};

// Called at each stage, on the caller's thread; fault programs stop or kill the process in it.
using StorageStageHook = std::function<void(StorageStage)>;

// Keeps segments and named contexts.
//
// A segment exists from the moment its Put() has returned OK, whatever dies afterwards. If the
// process dies inside Put(), it exists whole or not at all. What fails a check is never returned:
// it is moved into quarantine, counted, and from then on NOT_FOUND.
//
// Errors that any method can return: RESOURCE_EXHAUSTED no room on the disk; UNAVAILABLE or
//          INTERNAL the disk fails; DATA_LOSS stored bytes are damaged. The storage stays usable
//          for what still works.
// Threads: all methods on any thread; reads run in parallel, writes one after another.
class SegmentStorage {
 public:
  virtual ~SegmentStorage() = default;

  // Makes a segment durable. Putting a segment that exists changes nothing and is OK.
  //
  // REQUIRES: record.num_tokens == token_ids.size(), record.image_bytes == image.size(); the bytes
  //           do not change during the call.
  // Returns:  INVALID_ARGUMENT if the sizes disagree, or the image is empty; the segment does not
  //           exist after any error.
  virtual absl::Status Put(const SegmentRecord& record, std::span<const int32_t> token_ids,
                           std::span<const std::byte> image) = 0;

  // Returns the record of `name` if the stored token ids are `token_ids`.
  //
  // Returns: NOT_FOUND if there is no such segment or its tokens differ (counted).
  // Cost:    reads the token ids from the disk; no payload.
  virtual absl::StatusOr<SegmentRecord> Find(const SegmentName& name,
                                             std::span<const int32_t> token_ids) = 0;

  // Returns the record of `name` without comparing tokens, or nothing. Cost: memory only.
  virtual std::optional<SegmentRecord> Peek(const SegmentName& name) = 0;

  // Returns the records behind `parent` that are generated or blocks of fewer than 64 tokens, the
  // newest first, at most kMaxChildren. Cost: memory only.
  virtual std::vector<SegmentRecord> Children(const SegmentName& parent) = 0;
  static constexpr size_t kMaxChildren = 64;

  // Returns the token ids of a segment, or NOT_FOUND.
  virtual absl::StatusOr<std::vector<int32_t>> ReadTokens(const SegmentName& name) = 0;

  // Copies the image of a segment into `image`, in parallel and checked.
  //
  // REQUIRES: image.size() is the record's image_bytes, else INVALID_ARGUMENT.
  // Returns:  NOT_FOUND; DATA_LOSS if a check failed: the segment is in quarantine now. After an
  //           error the bytes of `image` are unspecified.
  virtual absl::Status Read(const SegmentName& name, std::span<std::byte> image) = 0;

  // Returns what reads the image of a segment in parts; null where it can only be read as a whole.
  // NOT_FOUND. REQUIRES: the storage outlives what is returned.
  virtual absl::StatusOr<std::unique_ptr<ImageParts>> OpenParts(const SegmentName& name) = 0;

  // Removes segments and gives their room on the disk back before it returns. Names that do not
  // exist are skipped. Returns the number removed.
  virtual absl::StatusOr<size_t> Delete(std::span<const SegmentName> names) = 0;

  // Records a use of each segment that exists. Touch a whole prefix together, so that no segment is
  // older than the ones that build on it. Written to disk in batches, see FlushTouches(); a crash
  // may lose the newest uses.
  virtual void Touch(std::span<const SegmentName> names, absl::Time when) = 0;
  virtual absl::Status FlushTouches() = 0;

  // Returns all records, the least recently used first; of equally old ones, the last of a prefix
  // first.
  virtual std::vector<SegmentRecord> List() = 0;

  // Adds a named context or replaces the one of the same tenant and name.
  //
  // Returns: INVALID_ARGUMENT for a name or a number of segments outside the limits;
  //          RESOURCE_EXHAUSTED (reason TOO_MANY_CONTEXTS) if there are too many; NOT_FOUND if a
  //          segment of it does not exist (with the position), unless it replaces a context with
  //          the same segments and is not pinned.
  virtual absl::Status PutContext(const ContextRecord& context) = 0;

  // Returns the context, or NOT_FOUND. Its segments may have been evicted if it is not pinned.
  virtual absl::StatusOr<ContextRecord> FindContext(const Hash256& salt_hash,
                                                    std::string_view context_name) = 0;

  // Removes a name; its segments stay. Returns NOT_FOUND if there is none.
  virtual absl::Status DeleteContext(const Hash256& salt_hash, std::string_view context_name) = 0;

  // Returns all contexts, ordered by tenant and name.
  virtual std::vector<ContextRecord> ListContexts() = 0;

  // Moves a segment aside, as a failed check does: from now on it is NOT_FOUND. For callers that
  // find an image wrong by checks of their own. NOT_FOUND if there is no such segment.
  virtual absl::Status Quarantine(const SegmentName& name, std::string_view reason) = 0;

  // Deletes what is in quarantine. Returns the number of segments removed.
  virtual absl::StatusOr<size_t> PurgeQuarantine() = 0;

  // Reads and checks everything. Corrupt segments go into quarantine and into the report; an error
  // means that the check itself could not go on.
  virtual absl::StatusOr<VerifyReport> VerifyAll() = 0;

  virtual StorageStats Stats() = 0;

  // Writes what is still in memory; from then on writes are UNAVAILABLE and reads go on. Nothing is
  // lost without it: the next start only takes longer. Called by the destructor, too.
  virtual void Close() {}
};

}  // namespace retroinfer::kvstore
