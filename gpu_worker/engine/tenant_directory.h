// Numbers of tenants, as the scheduler knows them.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "common/tenant/tenant.h"

namespace retroinfer {

// Names may come from requests, so there may be any number of them; numbers are few, since each
// costs time in every plan. A tenant keeps its number while it has requests, and after that until
// another one needs it, the one first that has been without any for longest.
class TenantDirectory {
 public:
  static constexpr size_t kRemembered = 256;

  // Number 0 is the tenant without a name, for ever.
  TenantDirectory();

  // A request of the tenant came. Its weight is what the latest request says.
  uint32_t Acquire(const common::Tenant& tenant);
  // A request of it has ended.
  void Release(uint32_t number);

  // By number, each above 0.
  std::span<const double> weights() const { return weights_; }
  // Numbers that stand for another tenant than when this was called last.
  std::vector<uint32_t> TakeNew();

 private:
  struct Entry {
    std::string name;
    int64_t requests = 0;
  };

  std::vector<Entry> entries_;   // by number
  std::vector<double> weights_;  // by number
  absl::flat_hash_map<std::string, uint32_t> numbers_;
  std::deque<uint32_t> idle_;  // without requests, longest first
  std::vector<uint32_t> new_;
};

}  // namespace retroinfer
