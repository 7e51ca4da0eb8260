// The part of a segment storage that only needs its catalog.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "kv_store_service/persistence/segment_catalog.h"
#include "kv_store_service/persistence/segment_storage.h"

namespace retroinfer::kvstore {

// Threads: as SegmentStorage.
class CatalogStorage : public SegmentStorage {
 public:
  std::optional<SegmentRecord> Peek(const SegmentName& name) override;
  std::vector<SegmentRecord> Children(const SegmentName& parent) override {
    return catalog_.Children(parent);
  }
  std::vector<SegmentRecord> List() override;
  absl::StatusOr<ContextRecord> FindContext(const Hash256& salt_hash,
                                            std::string_view context_name) override;
  std::vector<ContextRecord> ListContexts() override;

 protected:
  // Returns the row of a segment, or NOT_FOUND.
  absl::StatusOr<ManifestRow> Require(const SegmentName& name) const;

  // Sets the fields that the catalog knows.
  void AddTotals(StorageStats* stats) const;

  SegmentCatalog catalog_;
};

}  // namespace retroinfer::kvstore
