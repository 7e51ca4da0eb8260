#include "gpu_worker/assembly/gpu_nodes.h"

#include <algorithm>
#include <string_view>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace retroinfer {
namespace {

constexpr std::string_view kPrefix = "nvidia";

bool IsGpu(const std::string& name) {
  return name.size() > kPrefix.size() && name.compare(0, kPrefix.size(), kPrefix) == 0 &&
         std::all_of(name.begin() + kPrefix.size(), name.end(),
                     [](unsigned char c) { return absl::ascii_isdigit(c); });
}

bool HidesAll(const char* visible_devices) {
  if (visible_devices == nullptr) return false;
  const std::string_view value = visible_devices;
  return value.empty() || value == "-1" || value == "NoDevFiles";
}

}  // namespace

std::optional<std::string> FindGpuNode(const std::filesystem::path& folder) {
  std::optional<std::string> first;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    if (!IsGpu(entry->path().filename().string())) continue;
    first = std::min(first.value_or(entry->path().string()), entry->path().string());
  }
  return first;
}

absl::Status MayComputeOnCpu(const absl::Status& why, const std::optional<std::string>& node,
                             const char* visible_devices) {
  if (!node.has_value() || HidesAll(visible_devices)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("this machine has a GPU (", *node, "), but it cannot be used: ", why.message(),
                   "; mend that, or say --device cpu to compute on the CPU"));
}

}  // namespace retroinfer
