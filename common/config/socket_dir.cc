#include "common/config/socket_dir.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace retroinfer::common {

std::string DefaultSocketDir() {
  const char* runtime_dir = std::getenv("XDG_RUNTIME_DIR");
  if (runtime_dir != nullptr && *runtime_dir == '/') {
    return absl::StrCat(runtime_dir, "/retroinfer");
  }
  return absl::StrCat("/tmp/retroinfer-", ::geteuid());
}

std::string SocketDirOf(const std::string& folder) {
  struct stat info {};
  const bool is_shared = ::stat(folder.c_str(), &info) == 0 && S_ISDIR(info.st_mode) &&
                         (info.st_mode & (S_IRWXG | S_IRWXO)) != 0;
  if (!is_shared) return folder;
  return absl::StrCat(folder, folder.back() == '/' ? "" : "/", "retroinfer-", ::geteuid());
}

}  // namespace retroinfer::common
