#include "client/serve/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/clock/steady_now.h"
#include "common/shm/unique_fd.h"
#include "common/status/errno_status.h"

namespace retroinfer::client {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(10);

// argv or envp of execve(); valid while `strings` is.
std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

std::vector<std::string> ChildEnvironment() {
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!absl::StartsWith(*variable, "RETROINFER_")) environment.emplace_back(*variable);
  }
  return environment;
}

// Runs in the child after fork(): only async-signal-safe calls. Writes errno to `report` on
// failure.
[[noreturn]] void Execute(char* const* argv, char* const* envp, pid_t parent, int output,
                          int report) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it died before prctl()
  ::setpgid(0, 0);
  ::signal(SIGPIPE, SIG_DFL);
  // A request to reload that comes before the program is ready for it must not end it.
  ::signal(SIGHUP, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (output >= 0) {
    ::dup2(output, STDOUT_FILENO);
    ::dup2(output, STDERR_FILENO);
  }
  ::execve(argv[0], argv, envp);
  const int error_number = errno;
  [[maybe_unused]] const ssize_t written = ::write(report, &error_number, sizeof(error_number));
  ::_exit(127);
}

}  // namespace

std::string ProcessEnd::ToString() const {
  if (signal == 0) return absl::StrCat("exit code ", exit_code);
  return absl::StrCat("signal ", signal, " (", ::strsignal(signal), ")");
}

absl::StatusOr<ChildProcess> ChildProcess::Start(const std::vector<std::string>& arguments,
                                                 int output) {
  std::vector<std::string> argument_copies = arguments;
  std::vector<std::string> environment = ChildEnvironment();
  const std::vector<char*> argv = Pointers(argument_copies);
  const std::vector<char*> envp = Pointers(environment);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return common::ErrnoStatus(errno, "pipe2");
  common::UniqueFd read_end(ends[0]);
  common::UniqueFd write_end(ends[1]);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid < 0) return common::ErrnoStatus(errno, "fork");
  if (pid == 0) Execute(argv.data(), envp.data(), parent, output, write_end.get());
  write_end.Reset();
  int error_number = 0;
  ssize_t size = 0;
  do {  // ends when execve() closes the pipe
    size = ::read(read_end.get(), &error_number, sizeof(error_number));
  } while (size < 0 && errno == EINTR);
  ChildProcess child(pid);
  if (size == 0) return child;
  return common::ErrnoStatus(error_number, absl::StrCat("starting ", arguments[0]));
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)), end_(other.end_) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  if (this != &other) {
    ChildProcess old(std::exchange(pid_, std::exchange(other.pid_, -1)));
    old.end_ = std::exchange(end_, other.end_);
  }
  return *this;
}

ChildProcess::~ChildProcess() {
  if (pid_ < 0 || end_.has_value()) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

std::optional<ProcessEnd> ChildProcess::Poll() {
  if (end_.has_value() || pid_ < 0) return end_;
  int status = 0;
  if (::waitpid(pid_, &status, WNOHANG) != pid_) return std::nullopt;
  end_ = WIFSIGNALED(status) ? ProcessEnd{0, WTERMSIG(status)} : ProcessEnd{WEXITSTATUS(status), 0};
  return end_;
}

std::optional<ProcessEnd> ChildProcess::Wait(absl::Duration timeout) {
  const absl::Time deadline = common::SteadyNow() + timeout;
  while (!Poll().has_value() && common::SteadyNow() < deadline) absl::SleepFor(kPollInterval);
  return end_;
}

void ChildProcess::Signal(int signal) {
  if (pid_ > 0 && !Poll().has_value()) ::kill(pid_, signal);
}

ProcessEnd ChildProcess::Stop(absl::Duration grace) {
  Signal(SIGTERM);
  if (!Wait(grace).has_value()) {
    Signal(SIGKILL);
    Wait(absl::InfiniteDuration());
  }
  return *end_;
}

}  // namespace retroinfer::client
