// `retroinfer bench -- ...`: services of its own, as a shell runs it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/integration/service_processes.h"

namespace retroinfer::test_support {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kPatience = absl::Seconds(60);

std::string ReadText(const fs::path& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class BenchServicesTest : public ::testing::Test {
 protected:
  BenchServicesTest() {
    std::string pattern = (fs::temp_directory_path() / "retroinfer-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    fs::create_directory(TemporaryFolder());
  }
  ~BenchServicesTest() override { fs::remove_all(folder_); }

  // Where the command makes its folder.
  fs::path TemporaryFolder() const { return folder_ / "tmp"; }
  std::string Out(const std::string& name = "bench") { return ReadText(folder_ / (name + ".out")); }
  std::string Err(const std::string& name = "bench") { return ReadText(folder_ / (name + ".err")); }

  std::unique_ptr<ChildProcess> Bench(std::vector<std::string> options,
                                      const std::vector<std::string>& services = {},
                                      const std::string& name = "bench") {
    std::vector<std::string> arguments = {
        "/usr/bin/env", absl::StrCat("TMPDIR=", TemporaryFolder().string()),
        // Of a server that others use: not for these services.
        "RETROINFER_ADDRESS=127.0.0.1:1", "RETROINFER_LISTEN=256.256.256.256:1",
        "RETROINFER_METRICS_ADDRESS=256.256.256.256:1", "RETROINFER_SOCKET_DIR=/no/such/folder",
        "/bin/sh", "-c", "out=$1; shift; exec \"$@\" > \"$out\"", "sh",
        (folder_ / (name + ".out")).string(), ServiceProgram("retroinfer"), "bench", "--json",
        "--input-len=16"};
    arguments.insert(arguments.end(), options.begin(), options.end());
    arguments.insert(arguments.end(),
                     {"--", "--load-format=dummy", "--model-shape=tiny", "--arena-bytes=32MiB",
                      "--memory=256MiB", "--device=" + TestDevice()});
    arguments.insert(arguments.end(), services.begin(), services.end());
    return std::make_unique<ChildProcess>(arguments, (folder_ / (name + ".err")).string());
  }
  // A run that goes on for longer than any test, once requests have ended.
  std::unique_ptr<ChildProcess> LongBench() {
    auto bench = Bench({"--num-prompts=100000", "--output-len=8", "--request-rate=50",
                        "--max-concurrency=8", "--show-log"});
    // The worker tells of a request's end before the command knows of it. But of eight at once, the
    // ninth is sent when one has ended for the command, too.
    const auto ended = [this] {
      const std::vector<std::string> parts = absl::StrSplit(Err(), ": request gen-");
      return parts.size() - 1;
    };
    EXPECT_TRUE(Eventually([&ended] { return ended() >= 9; }, kPatience)) << Err();
    return bench;
  }
  static int ExitCode(ChildProcess& bench) {
    const std::optional<int> status = bench.Wait(kPatience);
    return status.has_value() && WIFEXITED(*status) ? WEXITSTATUS(*status) : -1;
  }

  // Programs that run with the test's TMPDIR: the command, what it forked, and the services.
  std::vector<pid_t> Processes(const std::string& program = "") {
    const std::string variable = absl::StrCat("TMPDIR=", TemporaryFolder().string());
    std::vector<pid_t> found;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      const std::vector<std::string> environment =
          absl::StrSplit(ReadText(entry.path() / "environ"), '\0');
      if (std::find(environment.begin(), environment.end(), variable) == environment.end()) {
        continue;
      }
      const std::string command = ReadText(entry.path() / "cmdline");
      if (absl::EndsWith(command.substr(0, command.find('\0')), program)) {
        found.push_back(std::stoi(name));
      }
    }
    return found;
  }
  void ExpectNothingIsLeft() {
    EXPECT_TRUE(Eventually([this] { return Processes().empty(); }));
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(TemporaryFolder())) files.push_back(entry);
    EXPECT_THAT(files, IsEmpty());
  }

  fs::path folder_;
};

TEST_F(BenchServicesTest, MeasuresServicesOfItsOwn) {
  std::ofstream(folder_ / "key") << "a key of the test\n";
  const std::string key = absl::StrCat("--api-key-file=", (folder_ / "key").string());
  const auto one =
      Bench({"--num-prompts=6", "--output-len=20", "--max-concurrency=2"}, {"--max-batch=2", key});
  // They do not meet.
  const auto other = Bench({"--num-prompts=2", "--output-len=5"}, {"--max-batch=3"}, "other");
  ASSERT_EQ(ExitCode(*one), 0) << Err();
  ASSERT_EQ(ExitCode(*other), 0) << Err("other");
  EXPECT_EQ(Err(), "");
  const auto json = nlohmann::json::parse(Out());
  EXPECT_EQ(json["services"], "own");
  EXPECT_THAT(json["service_arguments"].get<std::vector<std::string>>(), ::testing::Contains(key));
  EXPECT_EQ(json["completed"], 6);
  EXPECT_EQ(json["failed"], 0);
  EXPECT_EQ(json["total_input_tokens"], 6 * 16);
  EXPECT_EQ(json["total_output_tokens"], 6 * 20);
  EXPECT_EQ(json["model_id"], "tiny");
  EXPECT_EQ(json["load_format"], "dummy");
  EXPECT_EQ(json["server_max_batch"], 2);
  EXPECT_GT(json["output_throughput"], 0);
  EXPECT_EQ(nlohmann::json::parse(Out("other"))["server_max_batch"], 3);
  ExpectNothingIsLeft();
}

TEST_F(BenchServicesTest, AServiceThatCannotStartSaysWhy) {
  const auto bench = Bench({}, {"--max-model-len=100000000"});
  EXPECT_EQ(ExitCode(*bench), 1);
  EXPECT_EQ(Out(), "");
  EXPECT_THAT(Err(), HasSubstr("retroinfer bench: gpu_worker ended before it served anything: exit "
                               "code 1; its log ends with\n"));
  EXPECT_THAT(Err(), HasSubstr("use a smaller --max-model-len"));
  ExpectNothingIsLeft();
}

TEST_F(BenchServicesTest, ASignalEndsTheRunWithTheFiguresSoFar) {
  for (const int signal : {SIGINT, SIGTERM}) {
    const auto bench = LongBench();
    EXPECT_EQ(Processes("/gpu_worker").size(), 1u);
    EXPECT_EQ(Processes("/kv_store_service").size(), 1u);
    bench->Signal(signal);
    EXPECT_EQ(ExitCode(*bench), 128 + signal);
    EXPECT_GE(nlohmann::json::parse(Out())["completed"], 1);
    EXPECT_THAT(Err(), HasSubstr("interrupted: the figures are of the requests before"));
    EXPECT_THAT(Err(), HasSubstr("info gpu_worker: stopped"));  // the worker had its time
    ExpectNothingIsLeft();
    fs::remove(folder_ / "bench.err");
  }
}

TEST_F(BenchServicesTest, NothingIsLeftWhenTheEndComesWhileTheServicesStart) {
  for (const int signal : {SIGTERM, SIGKILL}) {
    for (const int64_t milliseconds : {10, 60, 150, 250}) {
      const auto bench = Bench({"--num-prompts=100000", "--output-len=8", "--request-rate=50"});
      absl::SleepFor(absl::Milliseconds(milliseconds));
      bench->Signal(signal);
      EXPECT_NE(ExitCode(*bench), 0);
      ExpectNothingIsLeft();
    }
  }
}

TEST_F(BenchServicesTest, NothingOutlivesTheCommandWhenItIsKilled) {
  const auto bench = LongBench();
  ASSERT_EQ(Processes("/gpu_worker").size(), 1u);
  std::vector<fs::path> folders;
  for (const auto& entry : fs::directory_iterator(TemporaryFolder())) folders.push_back(entry);
  ASSERT_EQ(folders.size(), 1u);
  EXPECT_EQ(fs::status(folders[0]).permissions(), fs::perms::owner_all);
  bench->Kill();
  ExpectNothingIsLeft();
}

TEST_F(BenchServicesTest, AServiceThatDiesEndsTheRun) {
  for (const std::string service : {"gpu_worker", "kv_store_service"}) {
    const auto bench = LongBench();
    const std::vector<pid_t> processes = Processes("/" + service);
    ASSERT_EQ(processes.size(), 1u);
    ::kill(processes[0], SIGKILL);
    EXPECT_EQ(ExitCode(*bench), 1);
    EXPECT_THAT(Err(), HasSubstr("retroinfer bench: " + service + " ended: signal 9 (Killed)"));
    EXPECT_GE(nlohmann::json::parse(Out())["completed"], 1);
    ExpectNothingIsLeft();
    fs::remove(folder_ / "bench.err");
  }
}

}  // namespace
}  // namespace retroinfer::test_support
