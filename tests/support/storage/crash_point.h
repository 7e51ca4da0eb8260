// Kills the process at a chosen moment of a write: how fault programs hit the narrow places.
#pragma once

#include <string_view>

#include "absl/status/statusor.h"
#include "kv_store_service/persistence/segment_storage.h"

namespace retroinfer::kvstore {

// Parses "<stage>:<n>" into a hook that kills the process with SIGKILL when it reaches the stage
// for the n-th time (n >= 1). Stages: put-begun, put-half-payload, put-payload, put-committed,
// delete-committed.
//
// Returns: INVALID_ARGUMENT, with the stages that there are.
absl::StatusOr<StorageStageHook> ParseCrashPoint(std::string_view text);

std::string_view StageName(StorageStage stage);

}  // namespace retroinfer::kvstore
