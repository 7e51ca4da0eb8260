#include "client/serve/private_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/socket.h>
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
#include "common/status/status_macros.h"

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

// What the child tells when it has tried to make the folder.
struct Made {
  int error_number = 0;
  char path[sizeof(sockaddr_un::sun_path)] = {};
};

void RemoveAll(const std::string& folder) {
  // Children of a process that was killed die a moment later, and may add files until then.
  for (int i = 0; i < kAttempts; ++i) {
    std::error_code error;
    std::filesystem::remove_all(folder, error);
    if (!error) return;
    absl::SleepFor(kRetryInterval);
  }
}

// The child: makes the folder, so that it has an owner from the beginning, tells its path, and
// removes it when every copy of the other end of `parent` is closed.
[[noreturn]] void OwnFolder(std::string pattern, int parent) {
  ::setpgid(0, 0);
  sigset_t all;
  sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, nullptr);
  ::prctl(PR_SET_NAME, "remove-folder");
  // Keeps none of the parent's descriptors: whoever waits for the end of one of its streams, or the
  // child of another folder for the parent's end, would wait for this process, too.
  ::dup2(parent, STDIN_FILENO);
  ::close_range(STDIN_FILENO + 1, UINT_MAX, 0);
  Made made;
  if (::mkdtemp(pattern.data()) == nullptr) made.error_number = errno;
  pattern.copy(made.path, sizeof(made.path) - 1);
  ::send(STDIN_FILENO, &made, sizeof(made), 0);
  if (made.error_number != 0) ::_exit(1);
  char byte;
  while (::recv(STDIN_FILENO, &byte, 1, 0) < 0 && errno == EINTR) continue;
  RemoveAll(pattern);
  ::_exit(0);
}

absl::StatusOr<std::string> ReceivePath(int child, const std::string& pattern) {
  Made made;
  ssize_t size = 0;
  do {
    size = ::recv(child, &made, sizeof(made), 0);
  } while (size < 0 && errno == EINTR);
  if (size != sizeof(made)) return absl::InternalError("the process for a folder has died");
  if (made.error_number == 0) return made.path;
  return common::ErrnoStatus(made.error_number, absl::StrCat("making the folder ", pattern,
                                                             " (TMPDIR names another place)"));
}

}  // namespace

absl::StatusOr<PrivateFolder> PrivateFolder::Create(const std::string& prefix) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return common::ErrnoStatus(errno, "socketpair");
  }
  common::UniqueFd alive(ends[0]);
  common::UniqueFd child_end(ends[1]);
  const std::string pattern = Pattern(prefix);
  const pid_t child = ::fork();
  if (child < 0) return common::ErrnoStatus(errno, "fork");
  if (child == 0) {
    alive.Reset();
    OwnFolder(pattern, child_end.get());
  }
  child_end.Reset();
  PrivateFolder folder(std::move(alive), child);
  ASSIGN_OR_RETURN(folder.path_, ReceivePath(folder.alive_.get(), pattern));
  return folder;
}

PrivateFolder::PrivateFolder(PrivateFolder&& other) noexcept
    : path_(std::move(other.path_)),
      alive_(std::move(other.alive_)),
      child_(std::exchange(other.child_, -1)) {}

PrivateFolder::~PrivateFolder() {
  if (child_ < 0) return;
  alive_.Reset();
  while (::waitpid(child_, nullptr, 0) < 0 && errno == EINTR) continue;
}

}  // namespace retroinfer::client
