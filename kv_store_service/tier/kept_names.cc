#include "kv_store_service/tier/kept_names.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kv_store_service/persistence/segment_storage.h"

namespace retroinfer::kvstore {
namespace {

// Names of segments that need not exist, kept for a minute by whoever asks.
constexpr size_t kMaxHeld = 4 * kMaxContextSegments;

}  // namespace

absl::Status KeptNames::Hold(std::span<const common::SegmentName> names, absl::Time until,
                             absl::Time now) {
  absl::erase_if(held_, [now](const auto& held) { return held.second <= now; });
  if (until > now && held_.size() + names.size() > kMaxHeld) {
    return absl::ResourceExhaustedError(absl::StrCat(
        held_.size(), " segments wait for contexts to be saved, this one has ", names.size(),
        ", at most ", kMaxHeld, " are waited for; try again in a minute"));
  }
  for (const common::SegmentName& name : names) {
    if (until <= now) {
      held_.erase(name);
    } else {
      held_[name] = std::max(held_[name], until);
    }
  }
  return absl::OkStatus();
}

}  // namespace retroinfer::kvstore
