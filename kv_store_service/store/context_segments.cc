#include "kv_store_service/store/context_segments.h"

#include "kv_store_service/directory/arena_segments.h"

namespace retroinfer::kvstore {

std::optional<ContextSegments::AttachedModel> ContextSegments::attached_model() const {
  absl::MutexLock lock(&state_.mutex);
  const Attachment* holder = state_.lease.holder();
  if (holder == nullptr) return std::nullopt;
  return AttachedModel{holder->parameters.geometry, holder->parameters.model_fingerprint};
}

uint64_t ContextSegments::arena_bytes() const {
  absl::MutexLock lock(&state_.mutex);
  return state_.current.arena == nullptr ? 0 : state_.current.arena->num_bytes();
}

bool ContextSegments::IsReferenced(const SegmentName& name) const {
  absl::MutexLock lock(&state_.mutex);
  if (state_.pins.IsPinnedForSave(name, common::SteadyNow())) return true;
  if (state_.current.segments == nullptr) return false;
  const SegmentDirectory& directory = state_.current.segments->directory();
  const ExtentRecord* segment = directory.FindNamed(name);
  if (segment != nullptr && segment->references > 0) return true;
  // Of a partial one the rest is still on the disk alone.
  const ExtentRecord* partial = directory.FindInProgress(name);
  return partial != nullptr && partial->partial != nullptr;
}

std::vector<uint64_t> ContextSegments::PagesInArena(std::span<const SegmentName> names) const {
  std::vector<uint64_t> pages(names.size(), 0);
  absl::MutexLock lock(&state_.mutex);
  if (state_.current.segments == nullptr) return pages;
  for (size_t i = 0; i < names.size(); ++i) {
    const ExtentRecord* segment = state_.current.segments->directory().FindNamed(names[i]);
    if (segment != nullptr) pages[i] = segment->pages.count;
  }
  return pages;
}

void ContextSegments::PersistNow(std::span<const SegmentName> names,
                                 const TierBridge::PersistFailed& failed) {
  TierBridge::ToPersist prepared;
  std::vector<SegmentName> of_another_model;
  {
    absl::MutexLock lock(&state_.mutex);
    if (state_.current.segments == nullptr) return;
    prepared = state_.bridge->PrepareNamed(state_.current, names, failed, &of_another_model);
  }
  state_.bridge->Submit(std::move(prepared));
  for (const SegmentName& name : of_another_model) {
    failed(name, absl::FailedPreconditionError("the segment is of a model that is not served now"));
  }
}

void ContextSegments::DropFromArena(std::span<const SegmentName> names) {
  absl::MutexLock lock(&state_.mutex);
  if (state_.current.segments == nullptr) return;
  // The end of a prefix first.
  for (auto name = names.rbegin(); name != names.rend(); ++name)
    state_.current.segments->EvictNamed(*name);
}

}  // namespace retroinfer::kvstore
