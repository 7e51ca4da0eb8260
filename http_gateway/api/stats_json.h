// The answer to GET /stats.
#pragma once

#include <string>

#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer::gateway {

// The model, its limits, and what the worker is doing: counters that grow from the worker's start
// ("..._total") and the state of now. For what cannot read Prometheus's format, like a page.
std::string StatsJson(const generation::v1::GetModelInfoResponse& info);

}  // namespace retroinfer::gateway
