// Files that operators and users write: settings of the programs, tenants and their keys, workloads
// of the bench command. The first byte says which of them the rest is.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "client/bench/workload.h"
#include "common/config/config_file.h"
#include "common/door/key_ring.h"

namespace {

using namespace retroinfer;  // NOLINT: one file

void Require(bool condition) {
  if (!condition) std::abort();
}

void ReadConfig(std::string_view text) {
  const auto file = common::ParseConfig(text);
  if (!file.ok()) {
    return Require(absl::IsInvalidArgument(file.status()) && !file.status().message().empty());
  }
  for (const common::ConfigEntry& entry : file->entries) {
    Require(!entry.name.empty() && entry.line >= 1);
  }
}

void ReadTenants(std::string_view text) {
  const auto ring = common::KeyRing::Parse(text);
  if (!ring.ok()) {
    return Require(absl::IsInvalidArgument(ring.status()) && !ring.status().message().empty());
  }
  Require(ring->required() && ring->names_tenants() && !ring->tenants().empty());
  for (const auto& tenant : ring->tenants()) {
    Require(!tenant->name.empty() && tenant->name.size() <= 64);
    Require(tenant->weight > 0 && tenant->weight <= 1000);
    Require(tenant->max_requests >= 0 && tenant->max_waiting_tokens >= 0 &&
            tenant->max_contexts >= 0);
  }
  Require(!ring->Find("Bearer a key that is in no file").ok());
}

void ReadWorkload(std::string_view text) {
  const auto requests = client::ParseWorkload(text);
  if (!requests.ok()) {
    return Require(absl::IsInvalidArgument(requests.status()) &&
                   !requests.status().message().empty());
  }
  absl::Duration before = absl::ZeroDuration();
  for (const client::WorkloadRequest& request : *requests) {
    Require(request.arrival >= before && request.arrival < absl::InfiniteDuration());
    Require(request.input_len >= 1 && request.output_len >= 1);
    Require(request.prefix_len >= 0 && request.prefix_len <= request.input_len);
    before = request.arrival;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      ReadConfig(text);
      break;
    case 1:
      ReadTenants(text);
      break;
    default:
      ReadWorkload(text);
  }
  return 0;
}
