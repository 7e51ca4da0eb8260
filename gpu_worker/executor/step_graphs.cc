#include "gpu_worker/executor/step_graphs.h"

#include <algorithm>

#include "common/status/status_macros.h"

namespace retroinfer {

StepGraphs::Entry* StepGraphs::Find(std::span<const uint64_t> shape) {
  const auto found = std::find_if(entries_.begin(), entries_.end(), [shape](const Entry& entry) {
    return std::equal(shape.begin(), shape.end(), entry.shape.begin(), entry.shape.end());
  });
  return found == entries_.end() ? nullptr : &*found;
}

void StepGraphs::Remember(std::span<const uint64_t> shape) {
  if (entries_.size() >= capacity_) {
    entries_.erase(
        std::min_element(entries_.begin(), entries_.end(),
                         [](const Entry& a, const Entry& b) { return a.last_use < b.last_use; }));
  }
  entries_.push_back({{shape.begin(), shape.end()}, nullptr, num_uses_});
}

absl::Status StepGraphs::Run(std::span<const uint64_t> shape,
                             absl::FunctionRef<absl::Status()> enqueue) {
  if (!device_.can_capture()) return enqueue();
  ++num_uses_;
  Entry* const entry = Find(shape);
  if (entry == nullptr) {
    RETURN_IF_ERROR(enqueue());
    Remember(shape);
    return absl::OkStatus();
  }
  entry->last_use = num_uses_;
  if (entry->graph == nullptr) {
    ASSIGN_OR_RETURN(entry->graph, device_.Capture(stream_, enqueue));
    ++counters_.recorded;
  }
  RETURN_IF_ERROR(device_.Launch(stream_, *entry->graph));
  ++counters_.launched;
  return absl::OkStatus();
}

}  // namespace retroinfer
