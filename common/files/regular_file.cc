#include "common/files/regular_file.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"

namespace retroinfer::common {
namespace {

constexpr char kAdvice[] = "; move it away or choose another folder";

absl::Status RequireRegular(const std::string& path, const struct stat& info, int flags) {
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is ", FileTypeName(info.st_mode), ", needs a regular file", kAdvice));
  }
  if (info.st_nlink <= 1 || (flags & O_ACCMODE) == O_RDONLY) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path, " has ", uint64_t{info.st_nlink},
                   " names (hard links), writing it would change the others, too", kAdvice));
}

absl::StatusOr<std::string> ReadAll(const UniqueFd& file, const std::string& path,
                                    size_t bytes_max) {
  std::string text;
  std::array<char, 1 << 16> buffer;
  while (const ssize_t count = ::read(file.get(), buffer.data(), buffer.size())) {
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, absl::StrCat("reading ", path));
    text.append(buffer.data(), static_cast<size_t>(count));
    if (text.size() > bytes_max) {
      return absl::ResourceExhaustedError(
          absl::StrCat(path, " has more than the ", bytes_max, " bytes that it may have"));
    }
  }
  return text;
}

}  // namespace

const char* FileTypeName(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFREG:
      return "a regular file";
    case S_IFDIR:
      return "a folder";
    case S_IFLNK:
      return "a symbolic link";
    case S_IFIFO:
      return "a FIFO";
    case S_IFSOCK:
      return "a socket";
    default:
      return "a device";
  }
}

bool SomethingIsAt(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0;
}

absl::StatusOr<UniqueFd> OpenRegularFile(const std::string& path, int flags) {
  struct stat info {};
  // Opening some devices does something; the look before the open spares them.
  if (::lstat(path.c_str(), &info) == 0) RETURN_IF_ERROR(RequireRegular(path, info, flags));
  UniqueFd file(::open(path.c_str(), flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600));
  if (!file.valid()) return ErrnoStatus(errno, absl::StrCat("opening ", path));
  if (::fstat(file.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("looking at ", path));
  RETURN_IF_ERROR(RequireRegular(path, info, flags));
  return file;
}

absl::StatusOr<std::string> ReadRegularFile(const std::string& path, size_t bytes_max) {
  ASSIGN_OR_RETURN(const UniqueFd file, OpenRegularFile(path, O_RDONLY));
  return ReadAll(file, path, bytes_max);
}

absl::StatusOr<std::string> ReadNamedFile(const std::string& path, size_t bytes_max) {
  struct stat info {};
  const auto check = [&]() -> absl::Status {
    if (S_ISREG(info.st_mode)) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat(path, " is ", FileTypeName(info.st_mode), ", needs a regular file"));
  };
  // Opening some devices does something; the look before the open spares them.
  if (::stat(path.c_str(), &info) == 0) RETURN_IF_ERROR(check());
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, absl::StrCat("opening ", path));
  if (::fstat(file.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("looking at ", path));
  RETURN_IF_ERROR(check());
  return ReadAll(file, path, bytes_max);
}

absl::Status ReplaceRegularFile(const std::string& path, std::string_view text) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) == 0) RETURN_IF_ERROR(RequireRegular(path, info, O_RDONLY));
  const std::string next = path + ".next";
  ASSIGN_OR_RETURN(const UniqueFd file, OpenRegularFile(next, O_WRONLY | O_CREAT | O_TRUNC));
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t count = ::write(file.get(), text.data() + written, text.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, absl::StrCat("writing ", next));
    written += static_cast<size_t>(count);
  }
  if (::fsync(file.get()) != 0) return ErrnoStatus(errno, absl::StrCat("writing ", next));
  if (::rename(next.c_str(), path.c_str()) == 0) return absl::OkStatus();
  return ErrnoStatus(errno, absl::StrCat("renaming ", next));
}

absl::Status RequireRoom(const std::string& folder, uint64_t bytes) {
  const std::string what = absl::StrCat("taking ", bytes, " bytes of the disk of ", folder);
  const UniqueFd probe(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (probe.valid()) {
    int error_number;
    do {
      error_number = ::posix_fallocate(probe.get(), 0, static_cast<off_t>(bytes));
    } while (error_number == EINTR);
    return error_number == 0 ? absl::OkStatus() : ErrnoStatus(error_number, what);
  }
  struct statvfs info {};  // a file system without nameless files
  if (::statvfs(folder.c_str(), &info) != 0) return ErrnoStatus(errno, what);
  const bool fits = static_cast<uint64_t>(info.f_bavail) * info.f_frsize >= bytes;
  return fits ? absl::OkStatus() : ErrnoStatus(ENOSPC, what);
}

absl::Status RequireFolder(const std::string& path) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    return ErrnoStatus(errno, absl::StrCat("looking at ", path));
  }
  if (S_ISDIR(info.st_mode)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is ", FileTypeName(info.st_mode), ", needs a folder", kAdvice));
}

}  // namespace retroinfer::common
