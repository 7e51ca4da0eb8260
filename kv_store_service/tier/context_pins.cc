#include "kv_store_service/tier/context_pins.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "kv_store_service/persistence/segment_storage.h"

namespace retroinfer::kvstore {
namespace {

// Bounds the memory: the segments need not exist, and a client pins their names for a minute.
constexpr size_t kMaxPinnedForSaves = 4 * kMaxContextSegments;

}  // namespace

absl::Status ContextPins::PinForSave(std::span<const common::SegmentName> names, absl::Time until,
                                     absl::Time now) {
  absl::erase_if(saves_, [now](const auto& save) { return save.second <= now; });
  if (until > now && saves_.size() + names.size() > kMaxPinnedForSaves) {
    return absl::ResourceExhaustedError(absl::StrCat(
        saves_.size(), " segments wait for contexts to be saved, this one has ", names.size(),
        ", at most ", kMaxPinnedForSaves, " are waited for; try again in a minute"));
  }
  for (const common::SegmentName& name : names) {
    if (until <= now) {
      saves_.erase(name);
    } else {
      saves_[name] = std::max(saves_[name], until);
    }
  }
  return absl::OkStatus();
}

}  // namespace retroinfer::kvstore
