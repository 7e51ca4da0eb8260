// What each tenant got, in tokens of work over its weight: who has the least is next (start-time
// fair queueing, Goyal et al. 1996).
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace retroinfer {

class TenantShares {
 public:
  // Tells the weights of all tenants, each above 0, and which of them want something now. One that
  // wanted nothing before begins where the least of the others is: what it did not use is gone.
  void Update(std::span<const double> weights, std::span<const bool> wants);
  void Charge(uint32_t tenant, double tokens);
  // The number stands for another tenant from now on, who has had nothing and wants nothing yet.
  void Renew(uint32_t tenant);
  // What the tenant got. REQUIRES: Update() knew it.
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
