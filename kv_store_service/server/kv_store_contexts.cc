// The half of KvStore that contexts need: which segments stay, and where they are.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/hash/segment_name.h"
#include "kv_store_service/server/kv_store.h"

namespace retroinfer::kvstore {
namespace {

// Names of segments that need not exist, kept for a minute by whoever asks.
constexpr size_t kMaxHeld = 4 * kMaxContextSegments;

}  // namespace

std::optional<KvStore::AttachedModel> KvStore::attached_model() const {
  absl::MutexLock lock(&mutex_);
  if (!attachment_.has_value() || !attachment_->leased) return std::nullopt;
  return AttachedModel{attachment_->parameters.geometry, attachment_->parameters.model_fingerprint};
}

uint64_t KvStore::arena_bytes() const {
  absl::MutexLock lock(&mutex_);
  return arena_.bytes().size();
}

void KvStore::PinNames(NameSet names) {
  absl::MutexLock lock(&mutex_);
  pinned_ = std::move(names);
}

absl::Status KvStore::Hold(std::span<const SegmentName> names, absl::Time until) {
  absl::MutexLock lock(&mutex_);
  const absl::Time now = absl::Now();
  absl::erase_if(held_, [now](const auto& held) { return held.second <= now; });
  if (until > now && held_.size() + names.size() > kMaxHeld) {
    return absl::ResourceExhaustedError(absl::StrCat(
        held_.size(), " segments wait for contexts to be saved, this one has ", names.size(),
        ", at most ", kMaxHeld, " are waited for; try again in a minute"));
  }
  for (const SegmentName& name : names) {
    if (until <= now) {
      held_.erase(name);
    } else {
      held_[name] = std::max(held_[name], until);
    }
  }
  return absl::OkStatus();
}

std::vector<uint64_t> KvStore::PagesInArena(std::span<const SegmentName> names) const {
  std::vector<uint64_t> pages(names.size(), 0);
  absl::MutexLock lock(&mutex_);
  if (segments_ == nullptr) return pages;
  for (size_t i = 0; i < names.size(); ++i) {
    const ExtentRecord* segment = segments_->directory().FindNamed(names[i]);
    if (segment != nullptr) pages[i] = segment->pages.count;
  }
  return pages;
}

void KvStore::PersistNow(std::span<const SegmentName> names, const PersistFailed& failed) {
  std::vector<PersistRequest> requests;
  std::vector<SegmentName> of_another_model;
  {
    absl::MutexLock lock(&mutex_);
    if (segments_ == nullptr) return;
    const common::Hash256 fingerprint = common::FingerprintHash(fingerprint_);
    for (const SegmentName& name : names) {
      const ExtentRecord* segment = segments_->directory().FindNamed(name);
      if (segment == nullptr || tier_->Peek(name).has_value()) continue;
      if (writing_.contains(name)) continue;
      if (segment->key->fingerprint != fingerprint) {
        of_another_model.push_back(name);
        continue;
      }
      PersistRequest& request = requests.emplace_back(MakePersistRequest(*segment));
      request.done = [done = std::move(request.done), name, failed](absl::Status status) mutable {
        if (!status.ok()) failed(name, status);
        done(std::move(status));
      };
    }
  }
  for (PersistRequest& request : requests) tier_->Persist(std::move(request));
  for (const SegmentName& name : of_another_model) {
    failed(name, absl::FailedPreconditionError("the segment is of a model that is not served now"));
  }
}

void KvStore::DropFromArena(std::span<const SegmentName> names) {
  absl::MutexLock lock(&mutex_);
  if (segments_ == nullptr) return;
  // The end of a prefix first.
  for (auto name = names.rbegin(); name != names.rend(); ++name) segments_->EvictNamed(*name);
}

}  // namespace retroinfer::kvstore
