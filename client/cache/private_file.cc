#include "client/cache/private_file.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/errno_status.h"

namespace retroinfer::client {

absl::StatusOr<PrivateFile> PrivateFile::Create(const std::string& path, bool replace) {
  if (!replace && ::access(path.c_str(), F_OK) == 0) {
    return absl::AlreadyExistsError(
        absl::StrCat(path, " is there already; name another file, or replace it with --force"));
  }
  std::string temporary = absl::StrCat(path, ".XXXXXX");
  common::UniqueFd fd(::mkostemp(temporary.data(), O_CLOEXEC));  // mode 0600
  if (!fd.valid()) return common::ErrnoStatus(errno, absl::StrCat("creating ", path));
  return PrivateFile(path, std::move(temporary), std::move(fd));
}

PrivateFile::PrivateFile(PrivateFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, "")),
      fd_(std::move(other.fd_)) {}

PrivateFile::~PrivateFile() {
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

absl::Status PrivateFile::Append(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return common::ErrnoStatus(errno, absl::StrCat("writing ", path_));
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

absl::Status PrivateFile::Commit() {
  if (::fsync(fd_.get()) != 0 || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
    return common::ErrnoStatus(errno, absl::StrCat("writing ", path_));
  }
  temporary_.clear();
  return absl::OkStatus();
}

}  // namespace retroinfer::client
