// What people see of a tuning.
#pragma once

#include <string>

#include "client/tune/budget_search.h"
#include "common/retrieval/retrieval_file.h"

namespace retroinfer::client {

// "change of a token at most 0.05"
std::string DescribeTarget(const TuneTarget& target);

// "8,192 tokens, ratio 0.035: change 0.041 +- 0.004, perplexity +0.2 % +- 0.1 %, same likeliest
// token 96.1 %"
std::string DescribeMeasured(const common::MeasuredRatio& measured);

// A table of what was chosen for each length, and of what misses the target.
std::string TuneTable(const common::RetrievalFile& file, const TuneTarget& target);

}  // namespace retroinfer::client
