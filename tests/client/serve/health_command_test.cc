#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>

#include "client/command/commands.h"
#include "client/command/exit_code.h"
#include "tests/client/command_runner.h"
#include "tests/support/certificates.h"
#include "tests/support/worker_harness.h"

namespace retroinfer::client {
namespace {

using ::testing::HasSubstr;

TEST(HealthCommand, TellsReadyFromAlive) {
  WorkerHarness::Settings settings;
  settings.serve = false;
  settings.server.keys = *common::KeyHolder::Open("a key that nobody gives", "");
  WorkerHarness worker(settings);
  const std::string address = "--address=" + worker.address();
  const CommandResult loading = RunCommand(HealthCommand, {"health", address});
  EXPECT_EQ(loading.exit_code, kExitFailed);
  EXPECT_EQ(loading.err, "retroinfer health: " + worker.address() + " is not serving\n");
  EXPECT_EQ(RunCommand(HealthCommand, {"health", address, "--live"}).out, "serving\n");

  std::thread loader([&] {
    absl::SleepFor(absl::Milliseconds(300));
    worker.Serve();
  });
  const CommandResult waited = RunCommand(HealthCommand, {"health", address, "--wait=120s"});
  loader.join();
  EXPECT_EQ(waited.exit_code, kExitOk) << waited.err;
  EXPECT_EQ(waited.out, "serving\n");
  EXPECT_EQ(RunCommand(HealthCommand, {"health", address, "--live"}).exit_code, kExitOk);
  EXPECT_EQ(RunCommand(HealthCommand,
                       {"health", address, "--service=retroinfer.generation.v1.ContextService"})
                .exit_code,
            kExitOk);
  const CommandResult unknown = RunCommand(HealthCommand, {"health", address, "--service=x.Y"});
  EXPECT_EQ(unknown.exit_code, kExitFailed);
  EXPECT_THAT(unknown.err, HasSubstr("knows no service x.Y"));
}

TEST(HealthCommand, NobodyIsNotServing) {
  const CommandResult absent =
      RunCommand(HealthCommand, {"health", "--address=unix:/no/such/socket", "--wait=200ms"});
  EXPECT_EQ(absent.exit_code, kExitFailed);
  EXPECT_THAT(absent.err, HasSubstr("no answer from unix:/no/such/socket"));
}

TEST(HealthCommand, WaitsForAnEnd) {
  WorkerHarness::Settings settings;
  settings.serve = false;  // not serving is not gone
  auto worker = std::make_unique<WorkerHarness>(settings);
  const std::string address = "--address=" + worker->address();
  const CommandResult there = RunCommand(HealthCommand, {"health", "--gone", address});
  EXPECT_EQ(there.exit_code, kExitFailed);
  EXPECT_EQ(there.err, "retroinfer health: " + worker->address() + " is still there\n");
  std::thread ender([&] {
    absl::SleepFor(absl::Milliseconds(300));
    worker.reset();
  });
  const CommandResult waited =
      RunCommand(HealthCommand, {"health", "--gone", address, "--wait=120s"});
  ender.join();
  EXPECT_EQ(waited.exit_code, kExitOk) << waited.err;
  EXPECT_EQ(waited.out, "gone\n");
}

TEST(HealthCommand, MistakesAreUsageErrors) {
  EXPECT_EQ(RunCommand(HealthCommand, {"health", "--wait=soon"}).exit_code, kExitUsage);
  EXPECT_EQ(RunCommand(HealthCommand, {"health", "--live", "--service=x"}).exit_code, kExitUsage);
  EXPECT_EQ(RunCommand(HealthCommand, {"health", "--tls-ca=/no/such/file"}).exit_code, kExitUsage);
}

TEST(HealthCommand, SpeaksTls) {
  ::signal(SIGPIPE, SIG_IGN);  // as all programs do: a refused client closes its end
  std::string pattern = (std::filesystem::temp_directory_path() / "retroinfer-XXXXXX").string();
  const std::string folder = ::mkdtemp(pattern.data());
  WriteCertificate(folder + "/server.pem", folder + "/server.key");
  common::Metrics metrics("gpu_worker", "1", "r", "cpu");
  ServerOptions options;
  options.addresses = {"127.0.0.1:0"};
  options.tls_certificate_file = folder + "/server.pem";
  options.tls_key_file = folder + "/server.key";
  {
    const auto server = WorkerServer::Start(options, metrics);
    ASSERT_TRUE(server.ok()) << server.status();
    const std::string address = "--address=" + (*server)->addresses()[0];
    const std::string ca = "--tls-ca=" + folder + "/server.pem";
    // The certificate is for localhost.
    EXPECT_EQ(RunCommand(HealthCommand, {"health", "--live", address, ca}).exit_code, kExitFailed);
    const CommandResult named =
        RunCommand(HealthCommand, {"health", "--live", address, ca, "--tls-server-name=localhost"});
    EXPECT_EQ(named.exit_code, kExitOk) << named.err;
    EXPECT_EQ(RunCommand(HealthCommand, {"health", "--live", address, "--timeout=2s"}).exit_code,
              kExitFailed);
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace retroinfer::client
