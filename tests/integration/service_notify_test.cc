// What a service manager hears from the three programs, and that the watchdog of each is fed by the
// loop that matters: here one thread of a process is held, and all others go on.
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/serve/health_probe.h"
#include "tests/integration/service_processes.h"
#include "tests/support/notify_listener.h"

namespace retroinfer::test_support {
namespace {

using ::testing::HasSubstr;

constexpr char kWatchdogUsec[] = "400000";
constexpr absl::Duration kHeld = absl::Seconds(2);  // five periods

// The environment that a manager gives a process, for those that are started meanwhile.
class ManagedEnvironment {
 public:
  explicit ManagedEnvironment(const NotifyListener& manager) {
    ::setenv("NOTIFY_SOCKET", manager.address().c_str(), 1);
    ::setenv("WATCHDOG_USEC", kWatchdogUsec, 1);
  }
  ~ManagedEnvironment() {
    ::unsetenv("NOTIFY_SOCKET");
    ::unsetenv("WATCHDOG_USEC");
  }
};

// The thread of `pid` that has this name; 0 if there is none.
pid_t ThreadNamed(pid_t pid, const std::string& name) {
  const std::string tasks = absl::StrCat("/proc/", pid, "/task");
  DIR* const folder = ::opendir(tasks.c_str());
  pid_t found = 0;
  while (folder != nullptr) {
    const dirent* const entry = ::readdir(folder);
    if (entry == nullptr) break;
    std::string comm;
    std::getline(std::ifstream(absl::StrCat(tasks, "/", entry->d_name, "/comm")), comm);
    if (comm == name) found = std::atoi(entry->d_name);
  }
  if (folder != nullptr) ::closedir(folder);
  return found;
}

// Holds one thread of another process, as a deadlock would.
class HeldThread {
 public:
  explicit HeldThread(pid_t thread) : thread_(thread) {
    held_ = ::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) == 0 &&
            ::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) == 0 &&
            ::waitpid(thread, nullptr, __WALL) == thread;
    if (!held_) error_ = std::strerror(errno);
  }
  ~HeldThread() {
    if (held_) ::ptrace(PTRACE_DETACH, thread_, nullptr, nullptr);
  }
  bool held() const { return held_; }
  const std::string& error() const { return error_; }

 private:
  const pid_t thread_;
  bool held_ = false;
  std::string error_;
};

int CountFeeds(const NotifyListener& manager, absl::Duration time) {
  const absl::Time end = absl::Now() + time;
  int count = 0;
  for (absl::Duration left = time; left > absl::ZeroDuration(); left = end - absl::Now()) {
    if (manager.Next(left) == "WATCHDOG=1") ++count;
  }
  return count;
}

// Whether the feeding stops while `thread` is held and goes on afterwards; skips the rest of a test
// where no thread can be held. `last`: what a loop that watches the thread may still say.
void ExpectFedBy(pid_t thread, const NotifyListener& manager, int last,
                 const std::string& health_address) {
  ASSERT_GT(thread, 0);
  ASSERT_FALSE(manager.Await("WATCHDOG=1").empty());
  {
    const HeldThread holder(thread);
    if (!holder.held()) GTEST_SKIP() << "ptrace is not allowed here: " << holder.error();
    while (!manager.Next(absl::ZeroDuration()).empty()) continue;  // what was said before
    EXPECT_LE(CountFeeds(manager, kHeld), last);
    if (!health_address.empty()) {
      EXPECT_TRUE(client::HealthProbe(health_address).IsServing(absl::Minutes(1)))
          << "the rest of the process goes on, and would have fed it";
    }
  }
  EXPECT_FALSE(manager.Await("WATCHDOG=1").empty()) << "after it was let go";
}

class ServiceNotifyTest : public ::testing::Test {
 protected:
  std::string Address(const std::string& name) const {
    return (services_.folder() / name).string();
  }

  ServiceProcesses services_;
};

TEST_F(ServiceNotifyTest, BothServicesSayWhatTheyDoFromStartToStop) {
  const NotifyListener store(Address("store.notify"));
  const NotifyListener worker(absl::StrCat("@retroinfer-test", Address("worker.notify")));
  ASSERT_TRUE(store.bound() && worker.bound());
  {
    const ManagedEnvironment environment(store);
    services_.LaunchStore();
  }
  EXPECT_THAT(store.Await("STATUS=getting an arena of 96.00 MiB"),
              HasSubstr("\nEXTEND_TIMEOUT_USEC="));
  EXPECT_THAT(store.Await("READY=1"), HasSubstr("STATUS=serving in "));
  {
    const ManagedEnvironment environment(worker);
    services_.LaunchWorker();
  }
  EXPECT_THAT(worker.Await("STATUS=loading needle: "), HasSubstr("\nEXTEND_TIMEOUT_USEC="));
  EXPECT_THAT(worker.Await("STATUS=loading needle: 100 %"), HasSubstr("EXTEND_TIMEOUT_USEC="));
  EXPECT_THAT(worker.Await("READY=1"), HasSubstr("STATUS=serving needle on "));
  // Attached and warm: READY came after that.
  EXPECT_FALSE(worker.Await("WATCHDOG=1").empty());

  for (auto& [process, manager] :
       {std::pair(&services_.store(), &store), std::pair(&services_.worker(), &worker)}) {
    process->Signal(SIGHUP);
    EXPECT_THAT(manager->Await("RELOADING=1"), HasSubstr("MONOTONIC_USEC="));
    EXPECT_THAT(manager->Await("READY=1"), HasSubstr("STATUS=serving"));
  }
  ExpectFedBy(ThreadNamed(services_.worker().pid(), "engine"), worker, 0,
              absl::StrCat("unix:", Address("worker.sock")));
  ExpectFedBy(ThreadNamed(services_.store().pid(), "data-plane"), store, 1,
              absl::StrCat("unix:", Address("kv_store.sock")));

  services_.worker().Signal(SIGTERM);
  EXPECT_THAT(worker.Await("STOPPING=1"), HasSubstr("STATUS=draining"));
  EXPECT_EQ(services_.worker().Wait(absl::Minutes(1)), std::optional<int>(0));
  services_.store().Signal(SIGTERM);
  EXPECT_FALSE(store.Await("STOPPING=1").empty());
  EXPECT_EQ(services_.store().Wait(absl::Minutes(1)), std::optional<int>(0));
}

TEST_F(ServiceNotifyTest, ServeSpeaksForBothAndTheyForNobody) {
  const NotifyListener manager(Address("notify"));
  ASSERT_TRUE(manager.bound());
  std::optional<ChildProcess> serve;
  {
    const ManagedEnvironment environment(manager);
    serve.emplace(
        std::vector<std::string>{
            ServiceProgram("retroinfer"), "serve", "--model=" + services_.options().model_folder,
            "--arena-bytes=96MiB", "--memory=512MiB", "--socket-dir=" + Address("sockets"),
            "--listen=unix:" + Address("api.sock"), "--metrics-address=127.0.0.1:0",
            "--store-metrics-address=127.0.0.1:0"},
        Address("serve.log"));
  }
  // Fed by its loop from the beginning; the first to be ready is the last of them all.
  EXPECT_THAT(manager.Next(absl::Minutes(1)), HasSubstr("STATUS=starting"));
  EXPECT_THAT(manager.Await("READY=1"), HasSubstr("STATUS=serving on unix:")) << serve->Log();
  EXPECT_TRUE(
      client::HealthProbe(absl::StrCat("unix:", Address("api.sock"))).IsServing(absl::Minutes(1)));
  ExpectFedBy(serve->pid(), manager, 0, absl::StrCat("unix:", Address("api.sock")));
  serve->Signal(SIGTERM);
  EXPECT_THAT(manager.Await("STOPPING=1"), HasSubstr("STATUS=stopping"));
  EXPECT_EQ(serve->Wait(absl::Minutes(1)), std::optional<int>(0)) << serve->Log();
}

}  // namespace
}  // namespace retroinfer::test_support
