// What a segment storage has, in memory: the records of its segments, when each was used last, and
// the named contexts.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "kv_store_service/persistence/segment_codec.h"
#include "kv_store_service/persistence/segment_storage.h"

namespace retroinfer::kvstore {

// Threads: all methods on any thread.
class SegmentCatalog {
 public:
  struct Totals {
    uint64_t segments = 0;
    uint64_t contexts = 0;
    uint64_t image_bytes = 0;
  };
  struct Use {
    SegmentName name;
    absl::Time last_use;
  };

  // Adds a segment; false if its name is there already.
  bool Insert(const ManifestRow& row);
  std::optional<ManifestRow> Find(const SegmentName& name) const;
  // As SegmentStorage::Children().
  std::vector<SegmentRecord> Children(const SegmentName& parent) const;

  // Removes a segment; with `payload_id`, only if it has that payload. True if it was there.
  bool Erase(const SegmentName& name, std::optional<uint64_t> payload_id = std::nullopt);

  // Records uses; an earlier time than the one known changes nothing.
  void Touch(std::span<const SegmentName> names, absl::Time when);

  // Returns the uses since the last call.
  std::vector<Use> TakeTouched();
  size_t num_touched() const;

  // Returns all segments in the order of SegmentStorage::List().
  std::vector<ManifestRow> List() const;

  // Checks a context against its limits and that its segments are here.
  absl::Status CheckContext(const ContextRecord& context) const;

  void PutContext(const ContextRecord& context);
  std::optional<ContextRecord> FindContext(const Hash256& salt_hash,
                                           std::string_view context_name) const;
  bool EraseContext(const Hash256& salt_hash, std::string_view context_name);
  std::vector<ContextRecord> ListContexts() const;
  // Forgets everything.
  void Clear();

  Totals totals() const;

 private:
  absl::Status CheckNumberOfContexts(const ContextRecord& context, const ContextRecord* known) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Those of one parent, the oldest first.
  using ChildSet = std::set<std::pair<absl::Time, SegmentName>>;
  void RemoveChild(const SegmentRecord& record) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable absl::Mutex mutex_;
  absl::flat_hash_map<SegmentName, ManifestRow> segments_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<SegmentName, ChildSet> children_ ABSL_GUARDED_BY(mutex_);  // by parent
  absl::flat_hash_set<SegmentName> touched_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, ContextRecord> contexts_ ABSL_GUARDED_BY(mutex_);  // by ContextKey()
  uint64_t image_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t num_references_ ABSL_GUARDED_BY(mutex_) = 0;  // of contexts to segments
};

// Checks the arguments of SegmentStorage::Put().
absl::Status CheckPut(const SegmentRecord& record, std::span<const int32_t> token_ids,
                      std::span<const std::byte> image);

// Checks the arguments of SegmentStorage::Read().
absl::Status CheckRead(const SegmentRecord& record, std::span<const std::byte> image);

// "segment <first 16 digits>": how messages name one.
std::string Describe(const SegmentName& name);

}  // namespace retroinfer::kvstore
