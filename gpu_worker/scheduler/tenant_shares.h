// The service that each tenant got, in tokens of work over its weight. The tenant with the least
// service is next (start-time fair queueing, Goyal et al. 1996).
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace retroinfer {

class TenantShares {
 public:
  // Sets the weights of all tenants, each above 0, and which tenants have requests now. A tenant
  // that had none before starts at the least service of the tenants that had: a tenant cannot save
  // up service that it did not use.
  void Update(std::span<const double> weights, std::span<const bool> wants);
  // Counts so many tokens of work as served to the tenant. REQUIRES: as Served().
  void Charge(uint32_t tenant, double tokens);
  // The number stands for a new tenant from now on, without service and without requests.
  void Renew(uint32_t tenant);
  // The tenant's service. REQUIRES: the weights of the last Update() include the tenant.
  double Served(uint32_t tenant) const { return tenants_[tenant].served; }

 private:
  struct Tenant {
    double served = 0;  // tokens / weight
    double weight = 1;
    bool wants = false;
  };
  std::vector<Tenant> tenants_;
};

}  // namespace retroinfer
