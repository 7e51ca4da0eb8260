// The part of a segment storage that only needs its catalog.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
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

  // Has `read` read and check each image. Segments for which it returns DATA_LOSS go into the
  // report; those for which it returns NOT_FOUND were deleted meanwhile; other errors end it.
  using ReadImage = std::function<absl::Status(const ManifestRow&, std::span<std::byte>)>;
  absl::StatusOr<VerifyReport> VerifyImages(const ReadImage& read) const;

  // Sets the fields that the catalog knows.
  void AddTotals(StorageStats* stats) const;

  SegmentCatalog catalog_;
};

}  // namespace retroinfer::kvstore
