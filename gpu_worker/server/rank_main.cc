#include "gpu_worker/server/rank_main.h"

#include <pthread.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/log/process_log.h"
#include "common/process/exit_status.h"
#include "common/process/service_signals.h"
#include "gpu_worker/assembly/compute_backend.h"
#include "gpu_worker/assembly/served_rank.h"
#include "gpu_worker/ranks/rank_channel.h"
#include "gpu_worker/ranks/rank_messages.h"
#include "gpu_worker/ranks/rank_process.h"

namespace retroinfer {
namespace {

constexpr std::string_view kRankFlag = "--rank=";
constexpr int kMaxRank = 7;

// Ends the process at once, with what its device does.
[[noreturn]] void EndNow(int exit_code) {
  common::FlushProcessLog();
  ::_exit(exit_code);
}

// Rank 0 says when this process ends, so signals that end services do nothing; SIGHUP is passed on
// by it.
void StartSignalThread() {
  std::thread([] {
    const sigset_t signals = common::ServiceSignals();
    while (true) {
      int signal = 0;
      if (::sigwait(&signals, &signal) == 0 && signal == SIGHUP) common::ReopenProcessLog();
    }
  }).detach();
}

}  // namespace

std::vector<std::string> RankProgram(int argc, const char* const* argv) {
  std::vector<std::string> program(argv, argv + argc);
  program[0] = "/proc/self/exe";
  return program;
}

absl::StatusOr<std::optional<int>> TakeRank(int* argc, const char* const* argv) {
  const std::string_view last = *argc > 1 ? argv[*argc - 1] : "";
  if (last.substr(0, kRankFlag.size()) != kRankFlag) return std::nullopt;
  int rank = 0;
  if (!absl::SimpleAtoi(std::string(last.substr(kRankFlag.size())), &rank) || rank < 1 ||
      rank > kMaxRank) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(last), ": ranks above 0 are 1 to ", kMaxRank));
  }
  struct stat socket {};
  if (::fstat(RankProcess::kSocket, &socket) != 0 || !S_ISSOCK(socket.st_mode)) {
    return absl::InvalidArgumentError(
        "--rank is for processes that gpu_worker starts itself: use --tensor-parallel");
  }
  --*argc;
  return rank;
}

int RunRank(const WorkerOptions& options) {
  ::pthread_setname_np(::pthread_self(), "gpu_worker");  // not "exe", in lists of processes
  RankChannel channel{common::UniqueFd(RankProcess::kSocket)};
  const sigset_t signals = common::ServiceSignals();
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  const std::string name = absl::StrCat("gpu_worker rank ", options.rank);
  if (const absl::Status status = common::StartProcessLog(name, options.log); !status.ok()) {
    std::cerr << name << ": " << status.message() << "\n";
    return common::kExitRefusesSettings;
  }
  StartSignalThread();
  const absl::Status status = ServeRank(options, common::UniqueFd(RankProcess::kMemory), channel,
                                        [] { EndNow(EXIT_SUCCESS); });
  if (status.ok()) EndNow(EXIT_SUCCESS);
  spdlog::critical("{}", std::string(status.message()));
  EndNow(common::ExitStatusOf(status));
}

}  // namespace retroinfer
