// The serve command over stand-ins for the services (fake_service.cc).
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "build_paths.h"
#include "client/command/commands.h"
#include "client/command/exit_code.h"
#include "common/shm/folder_lock.h"

namespace retroinfer::client {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const char kModel[] = "--model=" RETROINFER_SOURCE_DIR "/models/needle";

bool Await(const std::function<bool()>& reached) {
  for (int i = 0; i < 3000; ++i) {
    if (reached()) return true;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return false;
}

std::string ReadText(const fs::path& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Runs `retroinfer serve` in a process of its own, as a shell would.
class ServeCommandTest : public ::testing::Test {
 protected:
  ServeCommandTest() {
    std::string pattern = (fs::temp_directory_path() / "retroinfer-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    for (const char* name : {"kv_store_service", "gpu_worker"}) {
      fs::create_symlink(RETROINFER_FAKE_SERVICE, folder_ / name);
    }
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    (folder_ / "notify").string().copy(address.sun_path, sizeof(address.sun_path) - 1);
    notify_fd_ = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    EXPECT_EQ(::bind(notify_fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~ServeCommandTest() override {
    if (serve_ > 0) {
      ::kill(serve_, SIGKILL);
      ::waitpid(serve_, nullptr, 0);
    }
    ::close(notify_fd_);
    fs::remove_all(folder_);
  }

  void Serve(std::vector<std::string> arguments = {kModel}) {
    arguments.insert(arguments.begin(), {"serve", "--socket-dir=" + folder_.string(),
                                         "--bin-dir=" + folder_.string()});
    // Another server may have the usual ports.
    for (const char* const option : {"--listen", "--metrics-address", "--store-metrics-address"}) {
      const bool is_given = std::any_of(arguments.begin(), arguments.end(), [&](const auto& given) {
        return given.rfind(std::string(option) + "=", 0) == 0;
      });
      if (!is_given) arguments.push_back(std::string(option) + "=127.0.0.1:0");
    }
    serve_ = ::fork();
    if (serve_ != 0) return;
    std::vector<const char*> argv;
    for (const std::string& argument : arguments) argv.push_back(argument.c_str());
    const int log =
        log_fd_ >= 0 ? log_fd_
                     : ::open((folder_ / "serve.log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(log, STDERR_FILENO);
    ::close_range(STDERR_FILENO + 1, ~0U, 0);
    ::setenv("NOTIFY_SOCKET", (folder_ / "notify").c_str(), 1);
    if (warns_) ::setenv("RETROINFER_ARENA_BYTE", "1GiB", 1);
    std::exit(ServeCommand(static_cast<int>(argv.size()), argv.data(), Streams()));
  }
  int ExitCode() {
    int status = 0;
    ::waitpid(std::exchange(serve_, -1), &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  pid_t PidOf(const std::string& name) {
    const std::string text = ReadText(folder_ / (name + ".pid"));
    return text.empty() ? 0 : std::stoi(text);
  }
  // Dead and not even a zombie of ours; orphans may stay zombies where nobody reaps them.
  static bool IsGone(pid_t pid) {
    const std::string stat = ReadText("/proc/" + std::to_string(pid) + "/stat");
    return stat.empty() || stat.find(") Z") != std::string::npos;
  }
  bool AwaitBoth() {
    return Await([&] { return PidOf("kv_store_service") > 0 && PidOf("gpu_worker") > 0; });
  }
  // Waits until `serve` says so to its service manager: both have been seen to serve.
  bool AwaitReady() {
    return Await([&] {
      char text[1024];
      ssize_t size = 0;
      while ((size = ::recv(notify_fd_, text, sizeof(text), 0)) > 0) {
        if (std::string(text, static_cast<size_t>(size)).find("READY=1") != std::string::npos) {
          return true;
        }
      }
      return false;
    });
  }
  void Touch(const std::string& name) { std::ofstream(folder_ / name) << "x"; }
  std::string Log() { return ReadText(folder_ / "serve.log"); }

  fs::path folder_;
  pid_t serve_ = -1;
  int notify_fd_ = -1;
  int log_fd_ = -1;     // takes stderr of `serve`; -1: serve.log
  bool warns_ = false;  // there is a variable that `serve` warns of first of all
};

TEST_F(ServeCommandTest, StartsBothPassesFlagsAndStopsOnSigterm) {
  Serve({kModel, "--arena-bytes=1GiB", "--max-batch=3", "--listen=127.0.0.1:1",
         "--store-metrics-address=127.0.0.1:2", "--drain-timeout=7s"});
  ASSERT_TRUE(AwaitBoth()) << Log();
  const pid_t store = PidOf("kv_store_service");
  const pid_t worker = PidOf("gpu_worker");
  const std::string store_arguments = ReadText(folder_ / "kv_store_service.args");
  EXPECT_THAT(store_arguments, HasSubstr("--arena-bytes=1GiB\n"));
  EXPECT_THAT(store_arguments, HasSubstr("--metrics-address=127.0.0.1:2\n"));
  EXPECT_THAT(store_arguments, ::testing::Not(HasSubstr("--model")));
  const std::string worker_arguments = ReadText(folder_ / "gpu_worker.args");
  EXPECT_THAT(worker_arguments, HasSubstr(std::string(kModel) + "\n"));
  EXPECT_THAT(worker_arguments, HasSubstr("--max-batch=3\n"));
  EXPECT_THAT(worker_arguments, HasSubstr("--drain-timeout=7s\n"));
  EXPECT_THAT(worker_arguments, HasSubstr("--listen=127.0.0.1:1,unix:" + folder_.string()));
  ::kill(serve_, SIGTERM);
  EXPECT_EQ(ExitCode(), kExitOk) << Log();
  EXPECT_TRUE(IsGone(store));
  EXPECT_TRUE(IsGone(worker));
}

TEST_F(ServeCommandTest, RestartsWhatDies) {
  Serve();
  ASSERT_TRUE(AwaitReady()) << Log();
  for (const std::string name : {"kv_store_service", "gpu_worker"}) {
    const pid_t first = PidOf(name);
    EXPECT_THAT(ReadText(folder_ / (name + ".args")), HasSubstr("--restarts=0\n"));
    ::kill(first, SIGKILL);
    ASSERT_TRUE(Await([&] { return PidOf(name) != first; })) << Log();
    EXPECT_THAT(Log(), HasSubstr(name + " died (signal 9 (Killed)), restarting it in 500ms"));
    ASSERT_TRUE(Await([&] { return Log().find(name + " is serving again") != std::string::npos; }))
        << Log();
    EXPECT_THAT(ReadText(folder_ / (name + ".args")), HasSubstr("--restarts=1\n"));
  }
  ::kill(serve_, SIGINT);
  EXPECT_EQ(ExitCode(), kExitOk);
}

TEST_F(ServeCommandTest, AServiceThatNeverServesEndsIt) {
  Touch("gpu_worker.refuse");
  Serve();
  EXPECT_EQ(ExitCode(), kExitUsage);
  EXPECT_THAT(Log(), HasSubstr("gpu_worker ended before it served anything: exit code 2"));
  EXPECT_TRUE(IsGone(PidOf("kv_store_service")));
  fs::remove(folder_ / "gpu_worker.refuse");
  Touch("gpu_worker.fail");
  Serve();
  EXPECT_EQ(ExitCode(), kExitFailed);
  EXPECT_THAT(Log(), HasSubstr("gpu_worker ended before it served anything: exit code 1"));
}

// As systemd's RestartPreventExitStatus=2 needs it.
TEST_F(ServeCommandTest, AServiceThatRefusesItsSettingsIsNotRestarted) {
  Serve();
  ASSERT_TRUE(AwaitReady()) << Log();
  Touch("gpu_worker.refuse");
  ::kill(PidOf("gpu_worker"), SIGKILL);
  EXPECT_EQ(ExitCode(), kExitUsage) << Log();
  EXPECT_THAT(Log(), HasSubstr("gpu_worker does not take its settings: it ended with exit code 2"));
  EXPECT_THAT(Log(), ::testing::Not(HasSubstr("times in a row")));
  EXPECT_TRUE(IsGone(PidOf("kv_store_service")));
}

TEST_F(ServeCommandTest, WhatTheWorkerWouldRefuseIsToldBeforeTheStoreHasTheArena) {
  std::ofstream(folder_ / "gpu_worker.mistake") << "gpu_worker: --max-batch is odd";
  Serve({kModel, "--max-batch=3"});
  EXPECT_EQ(ExitCode(), kExitUsage);
  EXPECT_THAT(Log(), HasSubstr("gpu_worker: --max-batch is odd"));
  EXPECT_EQ(PidOf("kv_store_service"), 0);
}

TEST_F(ServeCommandTest, WhatDrainsIsToldAgainAtTheDeadlineAndTheStoreWaitsForIt) {
  Touch("gpu_worker.drains");
  Serve({kModel, "--drain-timeout=200ms"});
  ASSERT_TRUE(AwaitReady()) << Log();
  ::kill(serve_, SIGTERM);
  EXPECT_EQ(ExitCode(), kExitOk) << Log();
  EXPECT_EQ(ReadText(folder_ / "gpu_worker.terms"), "11");
  EXPECT_EQ(ReadText(folder_ / "kv_store_service.terms"), "1");
  EXPECT_THAT(Log(), ::testing::Not(HasSubstr("killing")));
  // The clock of files ticks every few milliseconds; a store that does not wait is 200 ms early.
  EXPECT_LE(fs::last_write_time(folder_ / "gpu_worker.terms"),
            fs::last_write_time(folder_ / "kv_store_service.terms"));
}

TEST_F(ServeCommandTest, ASecondSignalEndsTheDraining) {
  Touch("gpu_worker.drains");
  Serve({kModel, "--drain-timeout=1h"});
  ASSERT_TRUE(AwaitReady()) << Log();
  ::kill(serve_, SIGTERM);
  ASSERT_TRUE(Await([&] { return ReadText(folder_ / "gpu_worker.terms") == "1"; })) << Log();
  ::kill(serve_, SIGTERM);
  EXPECT_EQ(ExitCode(), kExitOk) << Log();
  EXPECT_EQ(ReadText(folder_ / "gpu_worker.terms"), "11");
  EXPECT_THAT(Log(), ::testing::Not(HasSubstr("killing")));
}

TEST_F(ServeCommandTest, WhoDoesNotEndAfterASecondSignalIsKilled) {
  Touch("gpu_worker.deaf");
  Serve({kModel, "--drain-timeout=1h"});
  ASSERT_TRUE(AwaitReady()) << Log();
  ::kill(serve_, SIGTERM);
  ASSERT_TRUE(Await([&] { return ReadText(folder_ / "gpu_worker.terms") == "1"; })) << Log();
  ::kill(serve_, SIGTERM);
  EXPECT_EQ(ExitCode(), kExitOk) << Log();
  EXPECT_THAT(Log(), HasSubstr("killing gpu_worker"));
}

TEST_F(ServeCommandTest, AThirdSignalKills) {
  Touch("gpu_worker.deaf");
  Serve();
  ASSERT_TRUE(AwaitBoth()) << Log();
  const pid_t worker = PidOf("gpu_worker");
  ::kill(serve_, SIGTERM);
  ASSERT_TRUE(Await([&] { return Log().find("stopping") != std::string::npos; }));
  absl::SleepFor(absl::Milliseconds(200));
  EXPECT_FALSE(IsGone(worker));
  ::kill(serve_, SIGTERM);
  ASSERT_TRUE(Await([&] { return ReadText(folder_ / "gpu_worker.terms") == "11"; })) << Log();
  ::kill(serve_, SIGTERM);
  EXPECT_EQ(ExitCode(), kExitOk);
  EXPECT_TRUE(IsGone(worker));
}

TEST_F(ServeCommandTest, NothingOutlivesAKilledSupervisor) {
  Serve();
  ASSERT_TRUE(AwaitBoth()) << Log();
  ::kill(serve_, SIGKILL);
  ExitCode();
  EXPECT_TRUE(Await([&] { return IsGone(PidOf("kv_store_service")); }));
  EXPECT_TRUE(Await([&] { return IsGone(PidOf("gpu_worker")); }));
}

TEST_F(ServeCommandTest, HangUpReachesTheServicesAndEndsNothing) {
  Serve();
  ASSERT_TRUE(AwaitBoth()) << Log();
  const pid_t worker = PidOf("gpu_worker");
  ::kill(serve_, SIGHUP);
  ASSERT_TRUE(Await([&] {
    return ReadText(folder_ / "gpu_worker.hups") == "1" &&
           ReadText(folder_ / "kv_store_service.hups") == "1";
  })) << Log();
  ::kill(serve_, SIGHUP);
  ASSERT_TRUE(Await([&] { return ReadText(folder_ / "gpu_worker.hups") == "11"; })) << Log();
  EXPECT_EQ(PidOf("gpu_worker"), worker);
  ::kill(serve_, SIGTERM);
  EXPECT_EQ(ExitCode(), kExitOk) << Log();
}

TEST_F(ServeCommandTest, AServiceThatDiesAgainAndAgainIsGivenUp) {
  Serve();
  ASSERT_TRUE(AwaitReady()) << Log();
  Touch("gpu_worker.fail");
  ::kill(PidOf("gpu_worker"), SIGKILL);
  EXPECT_EQ(ExitCode(), kExitFailed) << Log();
  EXPECT_THAT(Log(), HasSubstr("gpu_worker ended 4 times in a row before it served anything, now "
                               "with exit code 1"));
  EXPECT_TRUE(IsGone(PidOf("kv_store_service")));
}

TEST_F(ServeCommandTest, AFolderOfAnotherServerIsRefusedAndTheOtherGoesOn) {
  Serve();
  ASSERT_TRUE(AwaitBoth()) << Log();
  const pid_t first = serve_;
  const std::string name = "retroinfer serve (process " + std::to_string(first) + ") uses ";
  Serve();
  EXPECT_EQ(ExitCode(), kExitFailed);
  EXPECT_THAT(Log(), HasSubstr(name + folder_.string()));
  serve_ = first;
  ::kill(serve_, SIGTERM);
  EXPECT_EQ(ExitCode(), kExitOk);
}

TEST_F(ServeCommandTest, AStoreThatSomebodyElseRunsIsNotTakenForItsOwn) {
  const auto lock = common::FolderLock::Take(folder_.string(), "kv_store", "kv_store_service");
  ASSERT_TRUE(lock.ok());
  Serve();
  EXPECT_EQ(ExitCode(), kExitFailed);
  EXPECT_THAT(Log(), HasSubstr("kv_store_service (process " + std::to_string(::getpid())));
  EXPECT_EQ(PidOf("kv_store_service"), 0);
}

TEST_F(ServeCommandTest, AVariableThatNoProgramKnowsIsTold) {
  warns_ = true;
  Serve();
  ASSERT_TRUE(AwaitBoth()) << Log();
  EXPECT_THAT(Log(), HasSubstr("did you mean RETROINFER_ARENA_BYTES?"));
  ::kill(serve_, SIGTERM);
  EXPECT_EQ(ExitCode(), kExitOk);
}

TEST_F(ServeCommandTest, AReaderThatGoesAwayEndsNothing) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  log_fd_ = ends[1];
  warns_ = true;
  Serve();
  ::close(ends[1]);
  ::close(ends[0]);  // the first line meets a broken pipe
  ASSERT_TRUE(AwaitReady());
  const pid_t worker = PidOf("gpu_worker");
  ::kill(worker, SIGKILL);
  ASSERT_TRUE(Await([&] { return PidOf("gpu_worker") != worker; }));
  ::kill(serve_, SIGTERM);
  EXPECT_EQ(ExitCode(), kExitOk);
}

TEST_F(ServeCommandTest, APipeThatNobodyReadsHoldsUpNothing) {
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const std::string page(4096, 'x');
  while (::write(ends[1], page.data(), page.size()) > 0) continue;
  ASSERT_EQ(::fcntl(ends[1], F_SETFL, 0), 0);
  log_fd_ = ends[1];
  warns_ = true;
  Serve();
  ASSERT_TRUE(AwaitReady());
  const pid_t worker = PidOf("gpu_worker");
  ::kill(worker, SIGKILL);
  EXPECT_TRUE(Await([&] { return PidOf("gpu_worker") != worker; }));
  ::kill(serve_, SIGTERM);
  EXPECT_EQ(ExitCode(), kExitOk);
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST_F(ServeCommandTest, MistakesAreToldBeforeAnythingStarts) {
  Serve({});
  EXPECT_EQ(ExitCode(), kExitUsage);
  EXPECT_THAT(Log(), HasSubstr("--model is missing"));
  Serve({"--model=/no/such/model"});
  EXPECT_EQ(ExitCode(), kExitUsage);
  EXPECT_THAT(Log(), HasSubstr("there is no folder /no/such/model"));
  EXPECT_EQ(PidOf("kv_store_service"), 0);
  fs::remove(folder_ / "gpu_worker");
  Serve();
  EXPECT_EQ(ExitCode(), kExitUsage);
  EXPECT_THAT(Log(), HasSubstr("gpu_worker is not there"));
  Serve({kModel, "--nonsense"});
  EXPECT_EQ(ExitCode(), kExitUsage);
}

}  // namespace
}  // namespace retroinfer::client
