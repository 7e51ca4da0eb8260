// The whole device for a benchmark of a model.
#pragma once

#include <string>

#include "tests/support/backends.h"

namespace retroinfer::bench {

// `name`: cpu (bf16) or cuda, of which `memory_utilization` may be taken. Ends the program where it
// is not to be had.
test_support::Backend CreateBackend(const std::string& name, double memory_utilization = 0.95);

}  // namespace retroinfer::bench
