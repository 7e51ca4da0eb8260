// Workers that are killed, doubled, and exchanged for one with another model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "build_paths.h"
#include "nlohmann/json.hpp"
#include "tests/integration/generate_stream.h"
#include "tests/integration/service_processes.h"

namespace retroinfer::test_support {
namespace {

namespace v1 = generation::v1;
using testing::HasSubstr;

ServiceOptions Options() {
  ServiceOptions options;
  options.arena_bytes = "192MiB";  // for two requests of 8000 tokens
  options.worker_arguments = {"--dense-below", "1024"};
  return options;
}

v1::GenerateRequest LongRequest(int32_t max_tokens) {
  return SampledRequest(RandomTokens(4000, 1), max_tokens, 7);
}

std::optional<int> ExitCode(ChildProcess& process) {
  const std::optional<int> status = process.Wait(absl::Seconds(20));
  if (!status.has_value() || !WIFEXITED(*status)) return std::nullopt;
  return WEXITSTATUS(*status);
}

// Copies a safetensors file without the tensors of layers 3 and 4.
void CopyLowerLayers(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::ifstream in(from, std::ios::binary);
  uint64_t header_bytes = 0;
  in.read(reinterpret_cast<char*>(&header_bytes), sizeof(header_bytes));
  std::string header_text(header_bytes, ' ');
  in.read(header_text.data(), static_cast<std::streamsize>(header_bytes));
  const std::string data(std::istreambuf_iterator<char>(in), {});
  nlohmann::json original = nlohmann::json::parse(header_text);
  nlohmann::json header;
  std::string kept;
  for (auto& [name, tensor] : original.items()) {
    if (absl::StartsWith(name, "model.layers.3.") || absl::StartsWith(name, "model.layers.4.")) {
      continue;
    }
    if (tensor.contains("data_offsets")) {
      const size_t begin = tensor["data_offsets"][0];
      const size_t end = tensor["data_offsets"][1];
      tensor["data_offsets"] = {kept.size(), kept.size() + end - begin};
      kept += data.substr(begin, end - begin);
    }
    header[name] = tensor;
  }
  header_text = header.dump();
  header_text.resize((header_text.size() + 7) / 8 * 8, ' ');
  header_bytes = header_text.size();
  std::ofstream out(to, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&header_bytes), sizeof(header_bytes));
  out << header_text << kept;
}

// A copy of the demo model without its upper layers.
std::filesystem::path ShallowModel(const std::filesystem::path& folder) {
  const std::filesystem::path original = RETROINFER_SOURCE_DIR "/models/needle";
  const std::filesystem::path model = folder / "shallow";
  std::filesystem::create_directory(model);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json"}) {
    std::filesystem::copy(original / name, model / name);
  }
  nlohmann::json config;
  std::ifstream(original / "config.json") >> config;
  config["num_hidden_layers"] = 3;
  std::ofstream(model / "config.json") << config;
  CopyLowerLayers(original / "model.safetensors", model / "model.safetensors");
  return model;
}

class WorkerDeathTest : public testing::Test {
 protected:
  WorkerDeathTest() : processes_(Options()) { processes_.StartBoth(); }

  // Waits until the store has freed everything but named segments, which the next worker may find,
  // and nobody refers to these; false after 10 s.
  bool StoreHoldsNothing() {
    return Eventually(
        [&] {
          const kvstore::v1::GetStatsResponse stats = processes_.StoreStats();
          return !stats.worker_attached() && stats.sequences() == 0 &&
                 stats.reserved_extents() == 0 && stats.used_slots() == 0 &&
                 stats.committed_segments() == stats.named_segments() &&
                 stats.free_pages() + stats.unreferenced_pages() == stats.arena_pages();
        },
        absl::Seconds(10));
  }

  ServiceProcesses processes_;
};

TEST_F(WorkerDeathTest, TheStoreFreesWhatAKilledWorkerHeldAndTakesTheNext) {
  const std::vector<int32_t> tokens = Generate(processes_.worker_stub(), LongRequest(30));
  ASSERT_EQ(tokens.size(), 30u);
  {
    GenerateStream decoding(processes_.worker_stub(), LongRequest(4000));
    ASSERT_TRUE(decoding.WaitForTokens(20));
    GenerateStream prefilling(processes_.worker_stub(), LongRequest(4000));
    ASSERT_TRUE(Eventually([&] { return processes_.StoreStats().sequences() == 2; }));
    ASSERT_GT(processes_.StoreStats().committed_segments(), 0u);
    ASSERT_GT(processes_.StoreStats().used_slots(), 0u);
    processes_.worker().Kill();
    EXPECT_TRUE(StoreHoldsNothing());
    EXPECT_EQ(decoding.Wait().error_code(), grpc::StatusCode::UNAVAILABLE);
    EXPECT_EQ(prefilling.Wait().error_code(), grpc::StatusCode::UNAVAILABLE);
  }
  processes_.StartWorker();
  EXPECT_EQ(Generate(processes_.worker_stub(), LongRequest(30)), tokens);
  EXPECT_EQ(processes_.WaitUntilNothingIsHeld(), "");
  EXPECT_EQ(processes_.StoreStats().workers_attached_total(), 2u);
}

TEST_F(WorkerDeathTest, ASecondWorkerIsRefusedAndTheFirstIsNotDisturbed) {
  const std::vector<int32_t> tokens = Generate(processes_.worker_stub(), LongRequest(300));
  GenerateStream running(processes_.worker_stub(), LongRequest(300));
  ASSERT_TRUE(running.WaitForTokens(1));
  const auto second = processes_.StartOtherWorker("second");
  EXPECT_EQ(ExitCode(*second), 1);
  const std::string refusal =
      absl::StrCat("gpu_worker (process ", processes_.worker().pid(), ") uses ");
  EXPECT_THAT(processes_.LogOf("second"), HasSubstr(refusal));
  const auto same_socket = processes_.StartOtherWorker(
      "third", {"--listen", absl::StrCat("unix:", processes_.folder().string(), "/worker.sock")});
  EXPECT_EQ(ExitCode(*same_socket), 1);
  EXPECT_THAT(processes_.LogOf("third"), HasSubstr(refusal));
  EXPECT_TRUE(running.Wait().ok());
  EXPECT_EQ(running.tokens(), tokens);
}

TEST_F(WorkerDeathTest, AWorkerWithAnotherModelIsTakenOnceTheFirstHasGone) {
  const std::filesystem::path shallow = ShallowModel(processes_.folder());
  const auto refused = processes_.StartOtherWorker("refused", {"--model", shallow.string()});
  EXPECT_EQ(ExitCode(*refused), 1);
  EXPECT_THAT(processes_.LogOf("refused"), HasSubstr(" uses "));

  processes_.worker().Kill();
  ASSERT_TRUE(StoreHoldsNothing());
  const auto other = processes_.StartOtherWorker("other", {"--model", shallow.string()});
  EXPECT_TRUE(Eventually([&] { return processes_.StoreStats().geometry().num_layers() == 3; }))
      << processes_.LogOf("other");
  EXPECT_TRUE(processes_.StoreStats().worker_attached());
  other->Kill();
  ASSERT_TRUE(StoreHoldsNothing());
  // Pages of another type are another geometry, too.
  const auto f32 = processes_.StartOtherWorker("f32", {"--kv-dtype", "f32"});
  EXPECT_TRUE(Eventually([&] { return processes_.StoreStats().geometry().kv_format() == 1u; }))
      << processes_.LogOf("f32");
}

}  // namespace
}  // namespace retroinfer::test_support
