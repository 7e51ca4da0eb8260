#include "client/serve/serve_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/door/listen_socket.h"
#include "common/retrieval/retrieval_file.h"
#include "tests/client/incomplete_folders.h"

namespace retroinfer::client {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

ServeOptions Options(const std::vector<const char*>& arguments) {
  std::vector<const char*> argv = {"serve", "--socket-dir=/run/x", "--bin-dir=/opt"};
  argv.insert(argv.end(), arguments.begin(), arguments.end());
  common::Settings settings("", "");
  ServeOptions options;
  AddServeOptions(&settings, &options);
  EXPECT_TRUE(settings.Parse(static_cast<int>(argv.size()), argv.data()).ok());
  return options;
}

TEST(ServeOptions, DescribeBothServices) {
  const ServeOptions options = Options({"--model=/m", "--arena-bytes=1GiB", "--max-batch", "3",
                                        "--store-metrics-address=:2", "--drain-timeout=7s"});
  EXPECT_EQ(options.Passed("--model"), "/m");
  EXPECT_EQ(options.Passed("--policy"), "");
  const std::vector<ServiceSpec> specs = ServiceSpecs(options);
  ASSERT_EQ(specs.size(), 2u);
  EXPECT_EQ(specs[0].name, "kv_store_service");
  EXPECT_EQ(specs[0].health_address, "unix:/run/x/kv_store.sock");
  EXPECT_THAT(specs[0].arguments, ElementsAre("/opt/kv_store_service", "--socket-dir=/run/x",
                                              "--arena-bytes=1GiB", "--metrics-address=:2"));
  EXPECT_EQ(specs[1].name, "gpu_worker");
  EXPECT_EQ(specs[1].health_address, WorkerAddress(options));
  EXPECT_THAT(
      specs[1].arguments,
      ElementsAre("/opt/gpu_worker", "--socket-dir=/run/x", "--model=/m", "--max-batch=3",
                  "--listen=127.0.0.1:50051,unix:/run/x/generation.sock", "--drain-timeout=7s"));
  const ServeOptions logging = Options({"--model=/m", "--log-level=debug", "--log-format=json"});
  for (const ServiceSpec& spec : ServiceSpecs(logging)) {
    EXPECT_THAT(spec.arguments,
                AllOf(Contains("--log-level=debug"), Contains("--log-format=json")));
  }
  EXPECT_EQ(specs[1].drain_timeout, absl::Seconds(7));
  EXPECT_TRUE(specs[1].stops_first);
  EXPECT_EQ(specs[0].drain_timeout, absl::ZeroDuration());
}

TEST(ServeOptions, TheWorkerHasTheFirstOfTheModelsNamesTheGatewayAll) {
  const std::vector<ServiceSpec> specs =
      ServiceSpecs(Options({"--model=/m", "--http=:1", "--served-model-name=*,needle",
                            "--served-model-name=gpt-4o", "--strict-parameters"}));
  EXPECT_THAT(specs[2].arguments, Contains("--served-model-name=needle"));
  EXPECT_THAT(specs[1].arguments, Contains("--served-model-name=*,needle,gpt-4o"));
  EXPECT_THAT(specs[1].arguments, Contains("--strict-parameters"));
  const std::vector<ServiceSpec> any =
      ServiceSpecs(Options({"--model=/m", "--http=:1", "--served-model-name=*"}));
  EXPECT_THAT(any[2].arguments, Not(Contains(StartsWith("--served-model-name"))));
  EXPECT_THAT(any[1].arguments, Contains("--served-model-name=*"));
}

TEST(ServeOptions, APortThatIsFreeIsChosenOnce) {
  ServeOptions options =
      Options({"--model=/m", "--listen=127.0.0.1:0,localhost:7,unix:/x:0", "--http=127.0.0.1:0"});
  ASSERT_TRUE(ChooseFreePorts(&options).ok());
  EXPECT_THAT(ListenAddresses(options),
              testing::MatchesRegex("127.0.0.1:[1-9][0-9]*,localhost:7,unix:/x:0"));
  EXPECT_THAT(options.Passed("--http"), testing::MatchesRegex("127.0.0.1:[1-9][0-9]*"));
  EXPECT_THAT(ServiceSpecs(options)[2].arguments,
              Contains(HasSubstr(ListenAddresses(options) + ",unix:")));
  ServeOptions given = Options({"--model=/m"});
  ASSERT_TRUE(ChooseFreePorts(&given).ok());
  EXPECT_EQ(ListenAddresses(given), "127.0.0.1:50051");
  EXPECT_EQ(given.Passed("--http"), "");
  ServeOptions bad = Options({"--model=/m", "--listen=no.such.host.invalid:0"});
  EXPECT_FALSE(ChooseFreePorts(&bad).ok());
}

TEST(ServeOptions, PortsThatOthersHaveAreFoundBeforeAnythingStarts) {
  const common::ListenSockets taken = common::Listen("127.0.0.1:0").value();
  const std::string listen = "--listen=127.0.0.1:0,unix:/x," + taken.address;
  const ServeOptions of_worker = Options({"--model=/m", listen.c_str(), "--metrics-address=none"});
  EXPECT_EQ(CheckPorts(of_worker).code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(CheckPorts(of_worker).message()), HasSubstr("--listen: "));
  EXPECT_THAT(std::string(CheckPorts(of_worker).message()), HasSubstr(taken.address));
  const std::string http = "--http=" + taken.address;
  const ServeOptions of_gateway =
      Options({"--model=/m", "--listen=127.0.0.1:0", http.c_str(), "--metrics-address=none"});
  EXPECT_THAT(std::string(CheckPorts(of_gateway).message()), HasSubstr("--http: "));
  const std::string metrics = "--store-metrics-address=" + taken.address;
  const ServeOptions of_store = Options(
      {"--model=/m", "--listen=127.0.0.1:0", "--metrics-address=127.0.0.1:0", metrics.c_str()});
  EXPECT_THAT(std::string(CheckPorts(of_store).message()), HasSubstr("--store-metrics-address: "));
  EXPECT_TRUE(CheckPorts(Options({"--model=/m", "--listen=127.0.0.1:0", "--http=none",
                                  "--metrics-address=none", "--store-metrics-address=127.0.0.1:0"}))
                  .ok());
}

TEST(ServeOptions, TheGatewayHasTheWorkersDoor) {
  ServeOptions options =
      Options({"--model=/m", "--http=127.0.0.1:8000", "--api-key-file=/k", "--tls-certificate=/c",
               "--tls-key=/t", "--cors-origin=https://a", "--drain-timeout=7s"});
  const std::vector<ServiceSpec> specs = ServiceSpecs(options);
  ASSERT_EQ(specs.size(), 3u);
  EXPECT_EQ(specs[1].name, "http_gateway");
  EXPECT_EQ(specs[2].name, "gpu_worker");  // when the worker is ready, so is the gateway
  EXPECT_EQ(specs[1].health_address, "unix:/run/x/http.sock");
  EXPECT_TRUE(specs[1].health_is_http);
  EXPECT_TRUE(specs[1].checks_settings && specs[2].checks_settings);
  EXPECT_THAT(
      specs[1].arguments,
      ElementsAre("/opt/http_gateway", "--cors-origin=https://a",
                  "--http=127.0.0.1:8000,unix:/run/x/http.sock",
                  "--worker=unix:/run/x/generation.sock", "--drain-timeout=7s", "--api-key-file=/k",
                  "--tls-certificate=/c", "--tls-key=/t", "--worker-api-key-file=/k"));
  EXPECT_THAT(specs[2].arguments, Not(Contains(HasSubstr("--http"))));
  EXPECT_EQ(specs[1].drain_timeout, absl::Seconds(7));
  options.is_private = true;
  EXPECT_EQ(ServiceSpecs(options).size(), 2u);
  EXPECT_FALSE(HasGateway(Options({"--model=/m", "--http=none"})));
}

TEST(ServeOptions, TheGatewaysLimitsCanBeSet) {
  const ServeOptions options = Options(
      {"--model=/m", "--http=127.0.0.1:8000", "--http-max-connections=9",
       "--http-max-generations=5", "--http-max-body-bytes=1MiB", "--http-keepalive-interval=2s",
       "--billing-header=keep", "--tool-call-parser=hermes"});
  const std::vector<ServiceSpec> specs = ServiceSpecs(options);
  EXPECT_THAT(specs[1].arguments,
              AllOf(Contains("--max-connections=9"), Contains("--max-generations=5"),
                    Contains("--max-body-bytes=1MiB"), Contains("--keepalive-interval=2s"),
                    Contains("--billing-header=keep"), Contains("--tool-call-parser=hermes")));
  EXPECT_THAT(specs[2].arguments, Not(Contains(StartsWith("--max-connections"))));
}

TEST(ServeOptions, PrivateServicesListenOnTheirSocketsOnly) {
  ServeOptions options = Options({"--model=/m", "--listen=0.0.0.0:1", "--metrics-address=:2"});
  EXPECT_EQ(ListenAddresses(options), "0.0.0.0:1");
  options.is_private = true;
  const std::vector<ServiceSpec> specs = ServiceSpecs(options);
  EXPECT_THAT(specs[0].arguments, ElementsAre("/opt/kv_store_service", "--socket-dir=/run/x",
                                              "--metrics-address=none"));
  EXPECT_THAT(specs[1].arguments, AllOf(Contains("--listen=unix:/run/x/generation.sock"),
                                        Contains("--metrics-address=:2"),  // that was asked for
                                        Not(Contains(HasSubstr("0.0.0.0")))));
}

TEST(ServeOptions, MistakesAreFound) {
  ServeOptions no_model = Options({});
  EXPECT_THAT(std::string(CheckServeOptions(&no_model).message()),
              StartsWith("--model is missing"));
  ServeOptions no_programs = Options({"--load-format=dummy"});
  EXPECT_THAT(std::string(CheckServeOptions(&no_programs).message()),
              StartsWith("/opt/kv_store_service is not there"));
}

// The programs are looked for behind the model, so that /opt need not have them.
TEST(ServeOptions, FoldersThatLackSomethingAreExplained) {
  for (const test_support::IncompleteFolder& incomplete : test_support::IncompleteFolders()) {
    const test_support::TempFolder folder;
    folder.CopyFrom(RETROINFER_SOURCE_DIR "/models/needle");
    const std::string model = "--model=" + incomplete.make(folder);
    ServeOptions options = Options({model.c_str()});
    EXPECT_THAT(std::string(CheckServeOptions(&options).message()), HasSubstr(incomplete.told));
  }
}

TEST(ServeOptions, TheScalingOfRopeIsCheckedAndPassedOn) {
  for (const char* const model :
       {"--model=" RETROINFER_SOURCE_DIR "/models/needle", "--load-format=dummy"}) {
    ServeOptions wrong = Options({model, "--rope-scaling=linear:4"});
    EXPECT_THAT(std::string(CheckServeOptions(&wrong).message()), HasSubstr("yarn:FACTOR"));
    ServeOptions right = Options({model, "--rope-scaling=yarn:4:2048"});
    EXPECT_THAT(std::string(CheckServeOptions(&right).message()), StartsWith("/opt/"));
    EXPECT_THAT(ServiceSpecs(right)[1].arguments, Contains("--rope-scaling=yarn:4:2048"));
  }
}

TEST(ServeOptions, AMeasuredBudgetBesideTheCacheIsUsed) {
  const std::string folder = testing::TempDir() + "serve_options_cache";
  std::filesystem::create_directories(folder);
  const std::string path = folder + "/retrieval.toml";
  common::RetrievalFile file;
  file.subject = {.model_name = "m", .fingerprint = std::string(64, '0')};
  file.target_change = 0.05;
  file.budgets = {{.chosen = {.context = 8192, .ratio = 0.1, .windows = 1, .tokens = 64}}};
  const auto check = [&](std::vector<const char*> more) {
    const std::string cache = "--cache-dir=" + folder;
    std::vector<const char*> arguments = {"--load-format=dummy", "--model-shape=tiny",
                                          cache.c_str()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    ServeOptions options = Options(arguments);
    options.bin_dir = folder;
    for (const char* program : {"kv_store_service", "gpu_worker"}) {
      std::filesystem::remove(folder + "/" + program);
      std::filesystem::create_symlink("/bin/true", folder + "/" + program);
    }
    const absl::Status status = CheckServeOptions(&options);
    return status.ok() ? options.Passed("--retrieval") : std::string(status.message());
  };
  EXPECT_EQ(check({}), "") << "there is none";
  std::ofstream(path) << common::FormatRetrievalFile(file);
  EXPECT_EQ(check({}), path);
  EXPECT_EQ(check({"--retrieval=none"}), "none");
  EXPECT_EQ(check({"--retrieval-ratio=0.1"}), "") << "another budget is named";
  std::ofstream(path) << "version = 7\n";
  EXPECT_THAT(check({}), HasSubstr("retrieval.toml: line 1: version must be 1"));
  EXPECT_THAT(check({"--retrieval=/nowhere"}), HasSubstr("/nowhere"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace retroinfer::client
