#include "gpu_worker/engine/tenant_directory.h"

#include <utility>

namespace retroinfer {

TenantDirectory::TenantDirectory() : entries_(1), weights_{1} { numbers_[""] = 0; }

uint32_t TenantDirectory::Acquire(const common::Tenant& tenant) {
  if (const auto found = numbers_.find(tenant.name); found != numbers_.end()) {
    const uint32_t number = found->second;
    if (entries_[number].requests++ == 0) std::erase(idle_, number);
    weights_[number] = tenant.weight;
    return number;
  }
  uint32_t number = static_cast<uint32_t>(entries_.size());
  if (entries_.size() < kRemembered || idle_.empty()) {
    entries_.emplace_back();
    weights_.emplace_back();
  } else {
    number = idle_.front();
    idle_.pop_front();
    numbers_.erase(entries_[number].name);
    new_.push_back(number);
  }
  entries_[number] = {.name = tenant.name, .requests = 1};
  weights_[number] = tenant.weight;
  numbers_[tenant.name] = number;
  return number;
}

void TenantDirectory::Release(uint32_t number) {
  if (--entries_[number].requests == 0 && number != 0) idle_.push_back(number);
}

std::vector<uint32_t> TenantDirectory::TakeNew() { return std::exchange(new_, {}); }

}  // namespace retroinfer
