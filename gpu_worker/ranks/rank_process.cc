#include "gpu_worker/ranks/rank_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock/steady_now.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(5);
constexpr absl::Duration kEndLimit = absl::Seconds(5);

}  // namespace

absl::StatusOr<std::unique_ptr<RankProcess>> RankProcess::Start(std::vector<std::string> arguments,
                                                                int memory) {
  ASSIGN_OR_RETURN(auto ends, RankChannel::MakePair());
  // Out of the way of the numbers that they get in the process.
  const common::UniqueFd socket(::fcntl(ends.second.get(), F_DUPFD_CLOEXEC, kMemory + 1));
  const common::UniqueFd shared(::fcntl(memory, F_DUPFD_CLOEXEC, kMemory + 1));
  if (!socket.valid() || !shared.valid()) {
    return common::ErrnoStatus(errno, "descriptors for the process of a rank");
  }
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, socket.get(), kSocket);
  posix_spawn_file_actions_adddup2(&actions, shared.get(), kMemory);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  auto process = absl::WrapUnique(new RankProcess);
  const int error =
      ::posix_spawn(&process->pid_, argv[0], &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    process->has_ended_ = true;
    return common::ErrnoStatus(error, absl::StrCat("starting ", arguments[0], " for a rank"));
  }
  process->channel_ = std::make_unique<RankChannel>(std::move(ends.first));
  return process;
}

RankProcess::~RankProcess() {
  channel_.reset();
  if (has_ended_ || Wait(kEndLimit)) return;
  ::kill(pid_, SIGKILL);
  Wait(absl::InfiniteDuration());
}

bool RankProcess::Wait(absl::Duration timeout) {
  const absl::Time deadline = common::SteadyNow() + timeout;
  while (!has_ended_) {
    const pid_t ended = ::waitpid(pid_, &wait_status_, WNOHANG);
    has_ended_ = ended == pid_ || (ended < 0 && errno != EINTR);
    if (has_ended_ || common::SteadyNow() >= deadline) break;
    absl::SleepFor(kPoll);
  }
  return has_ended_;
}

void RankProcess::Signal(int signal) {
  if (!has_ended_) ::kill(pid_, signal);
}

std::string RankProcess::DescribeEnd(absl::Duration timeout) {
  if (!Wait(timeout)) return "it has not ended";
  if (!WIFSIGNALED(wait_status_)) return absl::StrCat("exit code ", WEXITSTATUS(wait_status_));
  const int signal = WTERMSIG(wait_status_);
  return absl::StrCat("signal ", signal, " (", ::strsignal(signal), ")");
}

}  // namespace retroinfer
