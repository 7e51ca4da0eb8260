#include "common/memory/available_memory.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/status/status_macros.h"

namespace retroinfer::common {
namespace {

constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// The number in a file that holds one number; nothing if there is none ("max", no such file).
std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream file(path);
  uint64_t value = 0;
  if (!(file >> value)) return std::nullopt;
  return value;
}

// The number behind `key` in a file of lines "key number".
std::optional<uint64_t> ReadField(const std::string& path, const std::string& key) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    uint64_t value = 0;
    if (words >> name >> value && name == key) return value;
  }
  return std::nullopt;
}

struct GroupFiles {
  const char* limit;
  const char* usage;
  const char* cache_field;  // of memory.stat
};
constexpr GroupFiles kVersion1 = {"/memory.limit_in_bytes", "/memory.usage_in_bytes",
                                  "total_inactive_file"};
constexpr GroupFiles kVersion2 = {"/memory.max", "/memory.current", "inactive_file"};

// What the group at `base` + `group` and the groups above it still allow. Groups that do not exist
// here (a container sees only its own part of the tree) limit nothing.
uint64_t AvailableInGroups(const std::string& base, std::string group, const GroupFiles& files) {
  uint64_t available = kUnlimited;
  while (true) {
    const std::string folder = base + group;
    const auto limit = ReadNumber(folder + files.limit);
    const auto usage = ReadNumber(folder + files.usage);
    if (limit.has_value() && usage.has_value()) {
      const uint64_t cache = ReadField(folder + "/memory.stat", files.cache_field).value_or(0);
      const uint64_t used = *usage - std::min(*usage, cache);
      available = std::min(available, *limit - std::min(*limit, used));
    }
    if (group.empty()) return available;
    group.erase(group.rfind('/'));
  }
}

uint64_t AvailableInAllGroups(const std::string& root) {
  uint64_t available = kUnlimited;
  std::ifstream groups(root + "/proc/self/cgroup");
  std::string line;
  while (std::getline(groups, line)) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::string group = parts[2] == "/" ? "" : parts[2];
    if (!group.empty() && group.front() != '/') continue;
    const std::vector<std::string> controllers = absl::StrSplit(parts[1], ',');
    if (parts[0] == "0" && parts[1].empty()) {
      available = std::min(available, AvailableInGroups(root + "/sys/fs/cgroup", group, kVersion2));
    } else if (std::find(controllers.begin(), controllers.end(), "memory") != controllers.end()) {
      available =
          std::min(available, AvailableInGroups(root + "/sys/fs/cgroup/memory", group, kVersion1));
    }
  }
  return available;
}

}  // namespace

absl::StatusOr<uint64_t> AvailableMemoryBytes(const std::string& root) {
  const std::string path = root + "/proc/meminfo";
  const auto available_kib = ReadField(path, "MemAvailable:");
  if (!available_kib.has_value()) {
    return absl::NotFoundError(absl::StrCat("cannot read MemAvailable from ", path));
  }
  return std::min(*available_kib * 1024, AvailableInAllGroups(root));
}

absl::Status RequireAvailableMemory(uint64_t bytes, const std::string& what) {
  ASSIGN_OR_RETURN(const uint64_t available, AvailableMemoryBytes());
  if (bytes <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      what, " needs ", bytes, " bytes (", bytes >> 20, " MiB), but only ", available, " bytes (",
      available >> 20, " MiB) of memory are available on this machine or in its control group"));
}

}  // namespace retroinfer::common
