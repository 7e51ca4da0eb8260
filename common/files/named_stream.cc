#include "common/files/named_stream.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"

namespace retroinfer::common {
namespace {

constexpr int kPollMilliseconds = 100;

bool IsFifo(int file) {
  struct stat info {};
  return ::fstat(file, &info) == 0 && S_ISFIFO(info.st_mode);
}

}  // namespace

absl::StatusOr<UniqueFd> OpenNamedOutput(const std::string& path, int flags, mode_t mode) {
  UniqueFd file(::open(path.c_str(), flags | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, mode));
  struct stat info {};
  if (!file.valid() && errno == ENXIO && ::stat(path.c_str(), &info) == 0 &&
      S_ISFIFO(info.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(path, " is a FIFO that nobody reads"));
  }
  if (!file.valid()) return ErrnoStatus(errno, absl::StrCat("opening ", path));
  const int status_flags = ::fcntl(file.get(), F_GETFL);
  if (status_flags < 0 || ::fcntl(file.get(), F_SETFL, status_flags & ~O_NONBLOCK) != 0) {
    return ErrnoStatus(errno, absl::StrCat("opening ", path));
  }
  return file;
}

absl::Status WriteNamedOutput(const std::string& path, std::string_view text) {
  absl::StatusOr<UniqueFd> file = OpenNamedOutput(path, O_WRONLY | O_CREAT | O_TRUNC, 0666);
  RETURN_IF_ERROR(file.status());
  while (!text.empty()) {
    const ssize_t count = ::write(file->get(), text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, absl::StrCat("writing ", path));
    text.remove_prefix(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

absl::StatusOr<NamedInput> NamedInput::Open(const std::string& path) {
  UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, absl::StrCat("reading ", path));
  const bool is_fifo = IsFifo(file.get());
  return NamedInput(path, std::move(file), is_fifo);
}

absl::StatusOr<size_t> NamedInput::Read(char* data, size_t size,
                                        const std::function<bool()>& should_stop) {
  while (true) {
    const ssize_t count = ::read(file_.get(), data, size);
    const int error = errno;
    if (count > 0 || (count == 0 && !may_be_alone_)) {
      may_be_alone_ = false;
      return static_cast<size_t>(count);
    }
    if (count == 0) {
      return absl::FailedPreconditionError(
          absl::StrCat(path_, " is a FIFO into which nobody has written"));
    }
    if (should_stop && should_stop()) {
      return absl::CancelledError(absl::StrCat("reading ", path_, " was given up"));
    }
    if (error == EAGAIN) {
      pollfd polled{file_.get(), POLLIN, 0};
      ::poll(&polled, 1, kPollMilliseconds);
    } else if (error != EINTR) {
      return ErrnoStatus(error, absl::StrCat("reading ", path_));
    }
  }
}

}  // namespace retroinfer::common
