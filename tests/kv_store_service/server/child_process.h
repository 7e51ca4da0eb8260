// Runs a program as a child that cannot outlive the test.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace retroinfer::kvstore {

// Threads: one. Owns: the child, which it kills at the end.
class ChildProcess {
 public:
  // Starts `arguments`; stdout and stderr are appended to `log_path`.
  ChildProcess(std::vector<std::string> arguments, std::string log_path)
      : log_path_(std::move(log_path)) {
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid_ = ::fork();
    if (pid_ != 0) return;
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int log = ::open(log_path_.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(log, STDOUT_FILENO);
    ::dup2(log, STDERR_FILENO);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  ~ChildProcess() {
    if (Wait(absl::ZeroDuration()).has_value()) return;
    Signal(SIGCONT);
    Kill();
  }
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void Signal(int signal) { ::kill(pid_, signal); }
  // Stops it, and returns when none of its threads runs any more.
  void Stop() {
    Signal(SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }
  void Kill() {
    Signal(SIGKILL);
    Wait(absl::InfiniteDuration());
  }

  // Waits for the end. Returns the wait status, or nothing after `timeout`.
  std::optional<int> Wait(absl::Duration timeout) {
    const absl::Time deadline = absl::Now() + timeout;
    while (!status_.has_value()) {
      int status = 0;
      if (::waitpid(pid_, &status, WNOHANG) == pid_) {
        status_ = status;
      } else if (absl::Now() >= deadline) {
        break;
      } else {
        absl::SleepFor(absl::Milliseconds(5));
      }
    }
    return status_;
  }

  std::string Log() const {
    std::stringstream text;
    text << std::ifstream(log_path_).rdbuf();
    return text.str();
  }

  // CPU time of the child so far.
  absl::Duration CpuTime() const {
    std::ifstream file("/proc/" + std::to_string(pid_) + "/stat");
    std::string field;
    int64_t ticks = 0;
    for (int i = 1; file >> field && i <= 15; ++i) {
      if (i == 14 || i == 15) ticks += std::atoll(field.c_str());
    }
    return absl::Seconds(static_cast<double>(ticks) / static_cast<double>(::sysconf(_SC_CLK_TCK)));
  }

 private:
  std::string log_path_;
  pid_t pid_ = -1;
  std::optional<int> status_;
};

// Polls until `condition` holds. Returns false after `timeout`.
template <typename Condition>
bool Eventually(Condition condition, absl::Duration timeout = absl::Seconds(10)) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!condition()) {
    if (absl::Now() >= deadline) return false;
    absl::SleepFor(absl::Milliseconds(5));
  }
  return true;
}

}  // namespace retroinfer::kvstore
