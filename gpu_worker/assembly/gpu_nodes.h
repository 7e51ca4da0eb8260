// Whether the machine has GPUs, as its device files say it: without a driver, and without CUDA.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "absl/status/status.h"

namespace retroinfer {

// Returns the first device file of a GPU ("/dev/nvidia0") in `folder`; nothing if there is none.
// The files of the driver itself (nvidiactl, nvidia-uvm) are no GPU.
std::optional<std::string> FindGpuNode(const std::filesystem::path& folder = "/dev");

// Judges that no GPU can be used, for the reason `why`, where --device auto leaves the choice.
// `node`: as FindGpuNode(); `visible_devices`: the environment variable CUDA_VISIBLE_DEVICES, null
// if it is not set.
//
// Returns: OK if the CPU is what is left or what was chosen: there is no GPU, or the variable hides
//          all of them; FAILED_PRECONDITION if a GPU lies idle: a CPU in its place is a hundred
//          times slower, which is worth a decision.
absl::Status MayComputeOnCpu(const absl::Status& why, const std::optional<std::string>& node,
                             const char* visible_devices);

}  // namespace retroinfer
