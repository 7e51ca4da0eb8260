// The whole device for a benchmark of a model.
#pragma once

#include <string>

#include "bench/support/drawn_blocks.h"
#include "tests/support/backends.h"

namespace retroinfer::bench {

// `name`: cpu (bf16) or cuda, GPU `ordinal`, of whose memory `memory_utilization` may be taken.
// Ends the program where it is not to be had.
test_support::Backend CreateBackend(const std::string& name, double memory_utilization = 0.95,
                                    int ordinal = 0);

// Makes prompts that choose blocks of keys attend to as large a share of them as `density`, drawn
// once they have chosen. Only of a cuda backend that CreateBackend made; else ends the program.
// Returns what was drawn, counted as it is drawn; lives as long as the backend's operations.
const BlockTotals* DrawChoices(test_support::Backend& backend, double density);

}  // namespace retroinfer::bench
