#include "kv_store_service/persistence/segment_catalog.h"

#include <algorithm>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "common/kv/kv_geometry.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"

namespace retroinfer::kvstore {
namespace {

// Whether it is found as what follows its parent, besides by its name.
bool IsFoundByParent(const SegmentRecord& record) {
  return record.provenance.has_value() || record.num_tokens < kDenseBlockTokens;
}

}  // namespace

bool SegmentCatalog::Insert(const ManifestRow& row) {
  absl::MutexLock lock(&mutex_);
  const SegmentRecord& record = row.record;
  if (!segments_.try_emplace(record.name, row).second) return false;
  image_bytes_ += record.image_bytes;
  if (IsFoundByParent(record)) children_[record.parent].emplace(record.created, record.name);
  return true;
}

void SegmentCatalog::RemoveChild(const SegmentRecord& record) {
  const auto children = children_.find(record.parent);
  if (children == children_.end()) return;
  children->second.erase({record.created, record.name});
  if (children->second.empty()) children_.erase(children);
}

std::vector<SegmentRecord> SegmentCatalog::Children(const SegmentName& parent) const {
  std::vector<SegmentRecord> records;
  absl::MutexLock lock(&mutex_);
  const auto children = children_.find(parent);
  if (children == children_.end()) return records;
  for (auto child = children->second.rbegin();
       child != children->second.rend() && records.size() < SegmentStorage::kMaxChildren; ++child) {
    records.push_back(segments_.at(child->second).record);
  }
  return records;
}

std::optional<ManifestRow> SegmentCatalog::Find(const SegmentName& name) const {
  absl::MutexLock lock(&mutex_);
  const auto found = segments_.find(name);
  if (found == segments_.end()) return std::nullopt;
  return found->second;
}

bool SegmentCatalog::Erase(const SegmentName& name, std::optional<uint64_t> payload_id) {
  absl::MutexLock lock(&mutex_);
  const auto found = segments_.find(name);
  if (found == segments_.end()) return false;
  if (payload_id.has_value() && found->second.payload_id != *payload_id) return false;
  image_bytes_ -= found->second.record.image_bytes;
  RemoveChild(found->second.record);
  segments_.erase(found);
  touched_.erase(name);
  return true;
}

void SegmentCatalog::Touch(std::span<const SegmentName> names, absl::Time when) {
  absl::MutexLock lock(&mutex_);
  for (const SegmentName& name : names) {
    const auto found = segments_.find(name);
    if (found == segments_.end() || found->second.record.last_use >= when) continue;
    found->second.record.last_use = when;
    touched_.insert(name);
  }
}

std::vector<SegmentCatalog::Use> SegmentCatalog::TakeTouched() {
  absl::MutexLock lock(&mutex_);
  std::vector<Use> uses;
  uses.reserve(touched_.size());
  for (const SegmentName& name : touched_) {
    uses.push_back({name, segments_.at(name).record.last_use});
  }
  touched_.clear();
  return uses;
}

size_t SegmentCatalog::num_touched() const {
  absl::MutexLock lock(&mutex_);
  return touched_.size();
}

std::vector<ManifestRow> SegmentCatalog::List() const {
  std::vector<ManifestRow> rows;
  {
    absl::MutexLock lock(&mutex_);
    rows.reserve(segments_.size());
    for (const auto& [name, row] : segments_) rows.push_back(row);
  }
  std::sort(rows.begin(), rows.end(), [](const ManifestRow& a, const ManifestRow& b) {
    return std::tie(a.record.last_use, b.record.token_begin, a.record.name) <
           std::tie(b.record.last_use, a.record.token_begin, b.record.name);
  });
  return rows;
}

absl::Status SegmentCatalog::CheckContext(const ContextRecord& context) const {
  const size_t name_bytes = context.context_name.size();
  if (name_bytes == 0 || name_bytes > kMaxContextNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the name of a context has 1 to ",
                                                   kMaxContextNameBytes, " bytes, this one has ",
                                                   name_bytes));
  }
  if (context.segments.size() > kMaxContextSegments) {
    return absl::InvalidArgumentError(absl::StrCat("a context has at most ", kMaxContextSegments,
                                                   " segments, this one has ",
                                                   context.segments.size()));
  }
  absl::MutexLock lock(&mutex_);
  const auto known = contexts_.find(ContextKey(context.salt_hash, context.context_name));
  if (!context.pinned && known != contexts_.end() && known->second.segments == context.segments) {
    return absl::OkStatus();
  }
  RETURN_IF_ERROR(
      CheckNumberOfContexts(context, known == contexts_.end() ? nullptr : &known->second));
  for (size_t i = 0; i < context.segments.size(); ++i) {
    if (!segments_.contains(context.segments[i])) {
      return absl::NotFoundError(absl::StrCat("segment ", i, " of ", context.segments.size(),
                                              " of the context is not durable"));
    }
  }
  return absl::OkStatus();
}

absl::Status SegmentCatalog::CheckNumberOfContexts(const ContextRecord& context,
                                                   const ContextRecord* known) const {
  const auto too_many = [](absl::string_view what, size_t max) {
    return common::WithReason(
        absl::ResourceExhaustedError(absl::StrCat(
            what, ", at most ", max, " are kept; remove contexts that are not needed")),
        "TOO_MANY_CONTEXTS");
  };
  const size_t references = num_references_ - (known == nullptr ? 0 : known->segments.size());
  if (references + context.segments.size() > kMaxContextReferences) {
    return too_many(absl::StrCat("the contexts have ", references, " segments, this one ",
                                 context.segments.size()),
                    kMaxContextReferences);
  }
  if (known != nullptr) return absl::OkStatus();
  if (contexts_.size() >= kMaxContexts) {
    return too_many(absl::StrCat("there are ", contexts_.size(), " contexts"), kMaxContexts);
  }
  size_t of_tenant = 0;
  for (auto other = contexts_.lower_bound(ContextKey(context.salt_hash, ""));
       other != contexts_.end() && other->second.salt_hash == context.salt_hash; ++other) {
    ++of_tenant;
  }
  if (of_tenant < kMaxContextsOfTenant) return absl::OkStatus();
  return too_many(absl::StrCat("this cache salt has ", of_tenant, " contexts"),
                  kMaxContextsOfTenant);
}

void SegmentCatalog::PutContext(const ContextRecord& context) {
  absl::MutexLock lock(&mutex_);
  ContextRecord& kept = contexts_[ContextKey(context.salt_hash, context.context_name)];
  num_references_ += context.segments.size() - kept.segments.size();
  kept = context;
}

std::optional<ContextRecord> SegmentCatalog::FindContext(const Hash256& salt_hash,
                                                         std::string_view context_name) const {
  absl::MutexLock lock(&mutex_);
  const auto found = contexts_.find(ContextKey(salt_hash, context_name));
  if (found == contexts_.end()) return std::nullopt;
  return found->second;
}

bool SegmentCatalog::EraseContext(const Hash256& salt_hash, std::string_view context_name) {
  absl::MutexLock lock(&mutex_);
  const auto context = contexts_.find(ContextKey(salt_hash, context_name));
  if (context == contexts_.end()) return false;
  num_references_ -= context->second.segments.size();
  contexts_.erase(context);
  return true;
}

void SegmentCatalog::Clear() {
  absl::MutexLock lock(&mutex_);
  segments_.clear();
  children_.clear();
  touched_.clear();
  contexts_.clear();
  num_references_ = 0;
  image_bytes_ = 0;
}

std::vector<ContextRecord> SegmentCatalog::ListContexts() const {
  absl::MutexLock lock(&mutex_);
  std::vector<ContextRecord> contexts;
  for (const auto& [key, context] : contexts_) contexts.push_back(context);
  return contexts;
}

SegmentCatalog::Totals SegmentCatalog::totals() const {
  absl::MutexLock lock(&mutex_);
  return {segments_.size(), contexts_.size(), image_bytes_};
}

absl::Status CheckPut(const SegmentRecord& record, std::span<const int32_t> token_ids,
                      std::span<const std::byte> image) {
  if (image.empty()) return absl::InvalidArgumentError("a segment without an image");
  if (record.image_bytes != image.size() || record.num_tokens != token_ids.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the record says ", record.image_bytes, " bytes and ", record.num_tokens,
                     " tokens, there are ", image.size(), " and ", token_ids.size()));
  }
  return absl::OkStatus();
}

absl::Status CheckRead(const SegmentRecord& record, std::span<const std::byte> image) {
  if (record.image_bytes == image.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "room for ", image.size(), " bytes was given, the image has ", record.image_bytes));
}

std::string Describe(const SegmentName& name) {
  return absl::StrCat("segment ", name.ToHex().substr(0, 16));
}

}  // namespace retroinfer::kvstore
