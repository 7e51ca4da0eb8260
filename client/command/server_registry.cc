#include "client/command/server_registry.h"

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/shm/folder_lock.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"

namespace retroinfer::client {
namespace {

namespace fs = std::filesystem;

// More servers than a machine has room for: a folder that somebody filled is not read to its end.
constexpr size_t kEntriesMax = 1024;

bool IsInUse(const std::string& socket_dir) {
  for (const char* role : {"serve", "kv_store", "gpu_worker"}) {
    if (common::FolderLock::Holder(socket_dir, role).has_value()) return true;
  }
  return false;
}

// Links and what they point to.
std::vector<std::pair<fs::path, std::string>> Entries(const std::string& folder) {
  std::vector<std::pair<fs::path, std::string>> entries;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end;
       !error && entry != end && entries.size() < kEntriesMax; entry.increment(error)) {
    std::error_code unreadable;
    const fs::path target = fs::read_symlink(entry->path(), unreadable);
    if (!unreadable) entries.emplace_back(entry->path(), target.string());
  }
  return entries;
}

std::string OwnEntry(const std::string& folder) { return absl::StrCat(folder, "/", ::getpid()); }

}  // namespace

std::string ServerRegistry::DefaultFolder() {
  const char* runtime_dir = std::getenv("XDG_RUNTIME_DIR");
  if (runtime_dir != nullptr && *runtime_dir == '/') {
    return absl::StrCat(runtime_dir, "/retroinfer-servers");
  }
  return absl::StrCat("/tmp/retroinfer-", ::geteuid(), "-servers");
}

absl::Status ServerRegistry::Add(const std::string& socket_dir) const {
  RETURN_IF_ERROR(common::PrepareSocketFolder(folder_));
  for (const auto& [path, target] : Entries(folder_)) {
    std::error_code ignored;
    if (!IsInUse(target)) fs::remove(path, ignored);
  }
  const std::string entry = OwnEntry(folder_);
  if (::unlink(entry.c_str()) != 0 && errno != ENOENT) return common::ErrnoStatus(errno, entry);
  if (::symlink(socket_dir.c_str(), entry.c_str()) != 0) return common::ErrnoStatus(errno, entry);
  return absl::OkStatus();
}

void ServerRegistry::Remove() const { ::unlink(OwnEntry(folder_).c_str()); }

std::vector<std::string> ServerRegistry::Running(const std::vector<std::string>& usual) const {
  std::set<std::string> folders(usual.begin(), usual.end());
  if (common::PrepareSocketFolder(folder_).ok()) {
    for (const auto& [path, target] : Entries(folder_)) folders.insert(target);
  }
  std::vector<std::string> running;
  for (const std::string& folder : folders) {
    if (IsInUse(folder)) running.push_back(folder);
  }
  return running;
}

}  // namespace retroinfer::client
