#include "gpu_worker/scheduler/tenant_shares.h"

#include <algorithm>
#include <limits>

namespace retroinfer {

void TenantShares::Update(std::span<const double> weights, std::span<const bool> wants) {
  tenants_.resize(std::max(tenants_.size(), weights.size()));
  constexpr double kNobody = std::numeric_limits<double>::infinity();
  double least = kNobody, most = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    tenants_[i].weight = weights[i];
    most = std::max(most, tenants_[i].served);
    if (wants[i] && tenants_[i].wants) least = std::min(least, tenants_[i].served);
  }
  // Where no tenant had requests, those that come now start alike.
  if (least == kNobody) least = most;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (wants[i] && !tenants_[i].wants) tenants_[i].served = std::max(tenants_[i].served, least);
    tenants_[i].wants = wants[i];
  }
}

void TenantShares::Charge(uint32_t tenant, double tokens) {
  tenants_[tenant].served += tokens / tenants_[tenant].weight;
}

void TenantShares::Renew(uint32_t tenant) {
  if (tenant < tenants_.size()) tenants_[tenant] = Tenant();
}

}  // namespace retroinfer
