// Who a call belongs to, and what that tenant may use.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace retroinfer::common {

struct Tenant {
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  std::string name;                       // empty: everybody, where there is no tenants' file
  double weight = 1;                      // its share of the time, beside those of others
  int32_t highest_priority = INT32_MIN;   // that its requests may ask for; lower numbers go first
  int64_t max_requests = kNoLimit;        // live at a time
  int64_t max_waiting_tokens = kNoLimit;  // of prompts of live requests that are not read yet
  int64_t max_contexts = kNoLimit;        // saved

  friend bool operator==(const Tenant&, const Tenant&) = default;
};

}  // namespace retroinfer::common
