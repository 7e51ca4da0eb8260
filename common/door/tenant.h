// Whose a call is, and what that one may have.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace retroinfer::common {

struct Tenant {
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  std::string name;                       // empty: whoever comes, where keys say nothing of tenants
  double weight = 1;                      // its share of the time, beside those of others
  int32_t highest_priority = INT32_MIN;   // the lowest number that its requests may ask for
  int64_t max_requests = kNoLimit;        // live at a time
  int64_t max_waiting_tokens = kNoLimit;  // of prompts of live requests that are not read yet
  int64_t max_contexts = kNoLimit;        // saved

  friend bool operator==(const Tenant&, const Tenant&) = default;
};

}  // namespace retroinfer::common
