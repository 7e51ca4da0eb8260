#include "gpu_worker/executor/command_result.h"

#include <algorithm>

namespace retroinfer {

void CommandResult::Clear() {
  refused = absl::OkStatus();
  without_memory.clear();
  failed.clear();
  progress.clear();
  read.clear();
  measured.clear();
  finished.clear();
  unsaved.clear();
  rows.clear();
  step = absl::OkStatus();
}

bool CommandResult::LacksMemory(uint64_t id) const {
  return std::find(without_memory.begin(), without_memory.end(), id) != without_memory.end();
}

const absl::Status* CommandResult::FailureOf(uint64_t id) const {
  const auto found = std::find_if(failed.begin(), failed.end(),
                                  [id](const Failure& failure) { return failure.id == id; });
  return found == failed.end() ? nullptr : &found->status;
}

}  // namespace retroinfer
