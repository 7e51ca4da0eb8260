// Named contexts: what users keep, by name, of the segments of a store.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kv_store_service/persistence/context_file.h"
#include "kv_store_service/persistence/segment_storage.h"
#include "kv_store_service/store/kv_store.h"

namespace retroinfer::kvstore {

// A context and where its segments are.
struct ContextListing {
  ContextRecord record;
  uint64_t reusable_tokens = 0;
  uint64_t bytes = 0;   // of the segments that are anywhere
  size_t in_arena = 0;  // segments
  size_t on_disk = 0;   // segments
  size_t missing = 0;   // segments that are nowhere
  absl::Time last_use = absl::InfinitePast();
};

struct ContextToSave {
  std::string name;
  Hash256 salt_hash;
  SegmentName root;
  std::vector<int32_t> sink_token_ids;
  std::vector<SegmentName> segments;
  uint64_t num_tokens = 0;
  bool pinned = false;
  absl::Duration time_to_live = absl::InfiniteDuration();
  bool replace = false;  // the context of the same name
};

// How many segments of a context that is being saved are written so far.
struct SaveProgress {
  size_t durable = 0;                   // on the disk
  size_t queued = 0;                    // in the arena, waiting to be written
  size_t missing = 0;                   // nowhere
  std::optional<ContextListing> saved;  // set: all are durable, and the context has its name
};

struct RemovedContext {
  size_t segments = 0;
  uint64_t bytes = 0;
};

struct ContextVerification {
  size_t segments = 0;  // of the context; each is one of the next three
  size_t intact = 0;
  size_t missing = 0;  // not on the disk
  size_t damaged = 0;
  uint64_t bytes_checked = 0;         // of images
  std::vector<std::string> problems;  // for people
};

struct ImportedContext {
  ContextListing context;
  size_t written = 0;  // segments
};

// The errors of all methods are those of the RPCs of kvstore/v1/contexts.proto.
//
// Threads: all methods on any thread. Verification, export and import read from the disk without a
//          lock, so that none waits for another. Lock order: mutex_, then the store's locks.
class Contexts {
 public:
  // Pins the segments of the pinned contexts that are on the disk.
  //
  // REQUIRES: `store` outlives this object and has its disk tier already, if it is to have one.
  explicit Contexts(KvStore* store);

  absl::StatusOr<SaveProgress> Save(const ContextToSave& context) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::vector<ContextListing>> List(const Hash256& salt_hash);
  absl::StatusOr<ContextListing> SetPinned(const Hash256& salt_hash, std::string_view name,
                                           bool pinned) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<RemovedContext> Remove(const Hash256& salt_hash, std::string_view name)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Reads and checks every segment. Stops between two segments once `is_over` returns true; empty:
  // never.
  absl::StatusOr<ContextVerification> Verify(const Hash256& salt_hash, std::string_view name,
                                             const std::function<bool()>& is_over = {});
  absl::Status Export(const Hash256& salt_hash, std::string_view name,
                      ContextFileWriter::Sink sink);

  // Whether the attached model can use the file.
  absl::Status CheckModel(const ContextFileHeader& header) const;
  // Saves the context of a file that was received. `context` gives the name (empty: the file's),
  // the tenant, the root and the pin. Calls `done` (may be empty) for each segment of the file
  // whose image is not needed any more.
  absl::StatusOr<ImportedContext> Import(const ContextFileReader& file, ContextToSave context,
                                         const std::function<void(size_t)>& done)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The disk tier; FAILED_PRECONDITION (NO_DURABLE_TIER) if there is none.
  absl::StatusOr<DurableTier*> RequireTier() const;

 private:
  struct Failures;  // of writes, shared with callbacks

  absl::StatusOr<ContextRecord> Find(const Hash256& salt_hash, std::string_view name) const;
  // Returns ALREADY_EXISTS (CONTEXT_EXISTS) if there is a context of the same name and
  // context.replace is not set.
  absl::Status CheckNameIsFree(const ContextToSave& context) const;
  ContextListing Describe(ContextRecord record) const;
  absl::StatusOr<ContextListing> PutContext(const ContextRecord& record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckPinLimit(const ContextRecord& record) const;
  void RefreshPins();
  // Checks one segment of a chain on the disk; `parent` becomes its name.
  absl::Status CheckSegment(const SegmentRecord& record, SegmentName* parent) const;
  absl::Status WriteImported(const ContextFileReader& file, size_t index,
                             const SegmentRecord& record, std::span<const int32_t> tokens);
  absl::StatusOr<std::vector<SegmentRecord>> NameImported(const ContextFileReader& file,
                                                          const ContextToSave& context) const;

  KvStore& store_;
  absl::Mutex mutex_;  // one change of names at a time
  const std::shared_ptr<Failures> failures_;
};

}  // namespace retroinfer::kvstore
