#include "kv_store_service/server/allocation_log.h"

#include "absl/strings/str_cat.h"
#include "common/config/byte_size.h"

namespace retroinfer::kvstore {

std::optional<std::string> AllocationLog::Due(int percent, absl::Time now) {
  if (now - last_ < kInterval) return std::nullopt;
  last_ = now;
  return absl::StrCat("allocating an arena of ", common::FormatByteSize(bytes_), ": ", percent,
                      " %");
}

}  // namespace retroinfer::kvstore
