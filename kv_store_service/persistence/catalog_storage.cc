#include "kv_store_service/persistence/catalog_storage.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer::kvstore {

std::optional<SegmentRecord> CatalogStorage::Peek(const SegmentName& name) {
  const auto row = catalog_.Find(name);
  if (!row.has_value()) return std::nullopt;
  return row->record;
}

std::vector<SegmentRecord> CatalogStorage::List() {
  std::vector<SegmentRecord> records;
  for (const ManifestRow& row : catalog_.List()) records.push_back(row.record);
  return records;
}

absl::StatusOr<ContextRecord> CatalogStorage::FindContext(const Hash256& salt_hash,
                                                          std::string_view context_name) {
  auto context = catalog_.FindContext(salt_hash, context_name);
  if (!context.has_value()) return absl::NotFoundError("there is no context of this name");
  return *std::move(context);
}

std::vector<ContextRecord> CatalogStorage::ListContexts() { return catalog_.ListContexts(); }

absl::StatusOr<ManifestRow> CatalogStorage::Require(const SegmentName& name) const {
  auto row = catalog_.Find(name);
  if (!row.has_value()) return absl::NotFoundError(absl::StrCat("there is no ", Describe(name)));
  return *std::move(row);
}

absl::StatusOr<VerifyReport> CatalogStorage::VerifyImages(const ReadImage& read) const {
  VerifyReport report;
  std::vector<std::byte> image;
  for (const ManifestRow& row : catalog_.List()) {
    image.resize(row.record.image_bytes);
    const absl::Status status = read(row, image);
    if (absl::IsNotFound(status)) continue;
    ++report.segments_checked;
    report.bytes_checked += row.record.image_bytes;
    if (absl::IsDataLoss(status)) {
      report.corrupt.push_back(row.record.name);
    } else {
      RETURN_IF_ERROR(status);
    }
  }
  return report;
}

void CatalogStorage::AddTotals(StorageStats* stats) const {
  const SegmentCatalog::Totals totals = catalog_.totals();
  stats->segments = totals.segments;
  stats->contexts = totals.contexts;
  stats->image_bytes = totals.image_bytes;
}

}  // namespace retroinfer::kvstore
