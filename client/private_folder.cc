#include "client/private_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status/errno_status.h"

namespace retroinfer::client {
namespace {

constexpr char kRandomEnd[] = "-XXXXXX";
constexpr size_t kSocketNameBytesMax = 32;
constexpr int kAttempts = 20;
constexpr absl::Duration kRetryInterval = absl::Milliseconds(50);

std::string Pattern(const std::string& prefix) {
  const char* const folder = std::getenv("TMPDIR");
  if (folder != nullptr && *folder == '/') {
    std::string pattern = absl::StrCat(folder, "/", prefix, kRandomEnd);
    if (pattern.size() + kSocketNameBytesMax < sizeof(sockaddr_un::sun_path)) return pattern;
  }
  return absl::StrCat("/tmp/", prefix, kRandomEnd);
}

// The child: waits until every copy of the other end of `pipe` is closed, then removes `folder`.
[[noreturn]] void RemoveAtTheEnd(const std::string& folder, int pipe) {
  ::setpgid(0, 0);
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::prctl(PR_SET_NAME, "remove-folder");
  // Nobody is to wait for the end of a stream, or of another folder's pipe, because of this
  // process.
  ::dup2(pipe, STDIN_FILENO);
  ::close_range(STDIN_FILENO + 1, UINT_MAX, 0);
  char byte;
  while (::read(STDIN_FILENO, &byte, 1) < 0 && errno == EINTR) continue;
  // Children of a process that was killed die a moment later, and may add files until then.
  for (int i = 0; i < kAttempts; ++i) {
    std::error_code error;
    std::filesystem::remove_all(folder, error);
    if (!error) break;
    absl::SleepFor(kRetryInterval);
  }
  ::_exit(0);
}

}  // namespace

absl::StatusOr<PrivateFolder> PrivateFolder::Create(const std::string& prefix) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return common::ErrnoStatus(errno, "pipe2");
  common::UniqueFd read_end(ends[0]);
  common::UniqueFd write_end(ends[1]);
  std::string path = Pattern(prefix);
  if (::mkdtemp(path.data()) == nullptr) {
    return common::ErrnoStatus(
        errno, absl::StrCat("making the folder ", path, " (TMPDIR names another place)"));
  }
  const pid_t remover = ::fork();
  if (remover == 0) {
    write_end.Reset();
    RemoveAtTheEnd(path, read_end.get());
  }
  if (remover < 0) {
    const int error_number = errno;
    ::rmdir(path.c_str());
    return common::ErrnoStatus(error_number, "fork");
  }
  return PrivateFolder(std::move(path), std::move(write_end), remover);
}

PrivateFolder::PrivateFolder(PrivateFolder&& other) noexcept
    : path_(std::move(other.path_)),
      alive_(std::move(other.alive_)),
      remover_(std::exchange(other.remover_, -1)) {}

PrivateFolder::~PrivateFolder() {
  if (remover_ < 0) return;
  alive_.Reset();
  while (::waitpid(remover_, nullptr, 0) < 0 && errno == EINTR) continue;
}

}  // namespace retroinfer::client
