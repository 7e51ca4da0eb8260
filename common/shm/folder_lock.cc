#include "common/shm/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/clock/steady_now.h"
#include "common/files/regular_file.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"

namespace retroinfer::common {
namespace {

constexpr absl::Duration kEndingTime = absl::Seconds(10);  // a killed process frees its memory
constexpr absl::Duration kPollInterval = absl::Milliseconds(20);

std::string LockPath(const std::string& folder, const std::string& role) {
  return absl::StrCat(folder, "/", role, ".lock");
}

// What the holder wrote; it may have the lock and not have written yet.
std::string ReadHolder(int file) {
  char text[128] = {};
  const ssize_t size = ::pread(file, text, sizeof(text) - 1, 0);
  const std::string holder(absl::StripAsciiWhitespace(size > 0 ? text : ""));
  return holder.empty() ? "another process" : holder;
}

absl::Status CannotMake(const std::string& folder, int error_number) {
  const absl::Status status =
      ErrnoStatus(error_number, absl::StrCat("--socket-dir: making the folder ", folder));
  return absl::Status(
      status.code(),
      absl::StrCat(status.message(), "; the folder around it must exist and user ", ::geteuid(),
                   " must have the right to write in it: for a volume that is mode 1777 or 0777, "
                   "or a group of this user that may write"));
}

// Whether the process that wrote `holder` has ended but for some of its threads, or files that are
// still being closed.
bool IsEnding(const std::string& holder) {
  const size_t at = holder.rfind("(process ");
  pid_t pid = 0;
  if (at == std::string::npos || std::sscanf(holder.c_str() + at, "(process %d)", &pid) != 1) {
    return false;
  }
  std::ifstream file(absl::StrCat("/proc/", pid, "/stat"));
  std::string stat;
  std::getline(file, stat);
  const size_t name_end = stat.rfind(") ");
  return name_end != std::string::npos && name_end + 2 < stat.size() &&
         (stat[name_end + 2] == 'Z' || stat[name_end + 2] == 'X');
}

// Tries `operation` on the lock; waits for a holder that is about to be gone.
bool Lock(int file, int operation) {
  const absl::Time deadline = SteadyNow() + kEndingTime;
  while (::flock(file, operation | LOCK_NB) != 0) {
    if (SteadyNow() >= deadline || !IsEnding(ReadHolder(file))) return false;
    absl::SleepFor(kPollInterval);
  }
  return true;
}

}  // namespace

absl::Status PrepareSocketFolder(const std::string& folder) {
  if (folder.empty() || folder.front() != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("--socket-dir is '", folder, "', needs an absolute path"));
  }
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return CannotMake(folder, errno);
  struct stat info {};
  if (::lstat(folder.c_str(), &info) != 0) return ErrnoStatus(errno, folder);
  if (S_ISDIR(info.st_mode) && info.st_uid == ::geteuid() && (info.st_mode & 0077) == 0) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError(absl::StrCat(
      "--socket-dir: ", folder, " is ", FileTypeName(info.st_mode), " of user ", info.st_uid,
      absl::StrFormat(" with mode %04o", info.st_mode & 07777), ", must be a folder of user ",
      ::geteuid(),
      " with mode 0700, so that nobody else reaches the store; remove it, or name another folder"));
}

absl::StatusOr<FolderLock> FolderLock::Take(const std::string& folder, const std::string& role,
                                            const std::string& program) {
  const std::string path = LockPath(folder, role);
  ASSIGN_OR_RETURN(UniqueFd file, OpenRegularFile(path, O_RDWR | O_CREAT));
  if (!Lock(file.get(), LOCK_EX)) {
    return absl::AlreadyExistsError(
        absl::StrCat(ReadHolder(file.get()), " uses ", folder,
                     "; stop it first, or choose another --socket-dir"));
  }
  const std::string text = absl::StrCat(program, " (process ", ::getpid(), ")\n");
  if (::ftruncate(file.get(), 0) != 0 ||
      ::pwrite(file.get(), text.data(), text.size(), 0) != static_cast<ssize_t>(text.size())) {
    return ErrnoStatus(errno, absl::StrCat("writing ", path));
  }
  return FolderLock(std::move(file));
}

std::optional<std::string> FolderLock::Holder(const std::string& folder, const std::string& role) {
  const absl::StatusOr<UniqueFd> file = OpenRegularFile(LockPath(folder, role), O_RDONLY);
  if (!file.ok() || Lock(file->get(), LOCK_SH)) return std::nullopt;
  return ReadHolder(file->get());
}

}  // namespace retroinfer::common
