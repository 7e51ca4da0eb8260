#include "common/process/descriptor_limit.h"

#include <sys/resource.h>

#include <algorithm>
#include <cstdio>

namespace retroinfer::common {
namespace {

// Some systems let processes have a billion; libraries that close all descriptors then take
// minutes.
constexpr rlim_t kEnough = 65536;

}  // namespace

int64_t RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlim_t wanted = std::min(limit.rlim_max, kEnough);
  if (limit.rlim_cur < wanted) {
    const rlimit raised = {.rlim_cur = wanted, .rlim_max = limit.rlim_max};
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  }
  return static_cast<int64_t>(limit.rlim_cur);
}

bool RaiseDescriptorLimitOf(const char* service) {
  const int64_t limit = RaiseDescriptorLimit();
  if (limit >= kServiceDescriptorsMin) return true;
  std::fprintf(stderr,
               "%s: it may open %ld files (ulimit -n), needs at least %ld: raise the limit\n",
               service, static_cast<long>(limit), static_cast<long>(kServiceDescriptorsMin));
  return false;
}

}  // namespace retroinfer::common
