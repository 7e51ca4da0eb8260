// What can go wrong before there is a store, and what is planned with one. What it serves then: see
// tests/integration.
#include "gpu_worker/assembly/served_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <tuple>

#include "build_paths.h"
#include "tests/gpu_worker/store_link/in_process_store.h"
#include "tests/support/decoded_trace.h"

namespace retroinfer {
namespace {

using ::testing::HasSubstr;

const common::ServiceNotifier silent;

absl::Status LoadStatus(const std::string& folder) {
  ServedEngineOptions options;
  options.model_folder = folder;
  options.store_socket_dir = "/nonexistent/retroinfer";
  options.num_threads = 1;
  return LoadServedEngine(options, CreateCpuBackend(options).value(), silent).status();
}

TEST(ServedEngineTest, NamesTheFileThatAModelFolderLacks) {
  const absl::Status status = LoadStatus("/nonexistent/model");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("there is no folder /nonexistent/model"));
}

TEST(ServedEngineTest, RefusesATokenizerThatIsLargerThanTheModel) {
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "served-engine-XXXXXX").string();
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  const fs::path golden = fs::path(RETROINFER_SOURCE_DIR) / "tests/golden";
  fs::copy(golden / "models/llama-d64-untied-bf16", folder, fs::copy_options::recursive);
  fs::copy(golden / "tokenizer/llama/tokenizer.json", folder);
  const absl::Status status = LoadStatus(folder);
  fs::remove_all(folder);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("do not belong together"));
}

// Random weights, and a store of this process.
class ServedEngineWithStoreTest : public testing::Test {
 protected:
  ServedEngineWithStoreTest() {
    options_.load_format = "dummy";
    options_.model_shape = "tiny";
    options_.store_socket_dir = store_.folder();
    options_.num_threads = 1;
    options_.max_model_len = 4096;
    options_.memory_bytes = size_t{1} << 30;
  }
  absl::Status Load(bool owns_memory = false) {
    ComputeBackend backend = CreateCpuBackend(options_).value();
    backend.owns_memory = owns_memory;
    absl::StatusOr<std::unique_ptr<ServedEngine>> engine =
        LoadServedEngine(options_, std::move(backend), silent);
    if (engine.ok()) num_slots_ = store_.Stats().num_slots();
    return engine.status();
  }

  static constexpr uint64_t kArenaPages = InProcessStore::kArenaBytes / kPageBytes;

  InProcessStore store_;
  ServedEngineOptions options_;
  uint64_t num_slots_ = 0;
};

TEST_F(ServedEngineWithStoreTest, NeverHasMoreSlotsThanTheArenaHasPages) {
  for (const bool owns_memory : {true, false}) {
    ASSERT_TRUE(Load(owns_memory).ok());
    EXPECT_EQ(num_slots_, kArenaPages);
  }
}

TEST_F(ServedEngineWithStoreTest, CountsNothingOfItsWarmUp) {
  options_.synthetic_context = 2048;  // so that the warm-up has segments, too
  options_.default_attention.policy = PolicyKind::kWave;
  auto engine = LoadServedEngine(options_, CreateCpuBackend(options_).value(), silent);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ((*engine)->model().architecture, "LlamaForCausalLM");
  const EngineStats stats = (*engine)->engine().stats();
  EXPECT_TRUE(stats.ready);
  EXPECT_EQ(stats.prompt_tokens, 0u);
  EXPECT_EQ(stats.generation_tokens, 0u);
  EXPECT_EQ(stats.decode_steps, 0u);
  EXPECT_EQ(stats.page_hits + stats.page_misses + stats.page_fills, 0u);
  EXPECT_EQ(stats.segments_built, 0u);
  EXPECT_EQ(stats.arena_bytes_out, 0u);
  EXPECT_EQ(stats.prefix_cache_queries_tokens, 0u);
}

TEST_F(ServedEngineWithStoreTest, HasAModelBesideThatDrafts) {
  options_.load_format = "auto";
  options_.model_shape.clear();
  options_.model_folder = RETROINFER_SOURCE_DIR "/models/needle";
  options_.draft_model_folder = options_.model_folder;
  options_.speculation = "auto";
  auto engine = LoadServedEngine(options_, CreateCpuBackend(options_).value(), silent);
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ((*engine)->engine().stats().draft_model_steps, 0u) << "the warm-up is not counted";
  engine->reset();
  options_.draft_model_folder =
      RETROINFER_SOURCE_DIR "/tests/golden/gguf/qwen2-00001-of-00002.gguf";
  const absl::Status status = Load();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("they need the same tokens"));
}

TEST_F(ServedEngineWithStoreTest, RecordsWhatItsStepsRetrieve) {
  namespace fs = std::filesystem;
  const fs::path path = fs::path(store_.folder()) / "trace";
  options_.synthetic_context = 2048;
  options_.dense_below = 1024;
  options_.default_attention.policy = PolicyKind::kWave;
  options_.record_trace_file = path;
  ASSERT_TRUE(Load().ok());
  std::stringstream bytes;
  bytes << std::ifstream(path).rdbuf();
  const test_support::DecodedTrace trace(bytes.str());
  EXPECT_EQ(trace.num_layers, 2u);
  EXPECT_EQ(trace.end, 0) << "the engine has ended";
  ASSERT_FALSE(trace.steps.empty());
  EXPECT_FALSE(trace.released.empty());
  for (const HeadRetrieval& head : trace.steps.back().heads) EXPECT_FALSE(head.clusters.empty());
}

TEST_F(ServedEngineWithStoreTest, RetrievesAsMuchAsItsQualitySays) {
  InProcessStore larger("", uint64_t{64} << 20);
  const std::filesystem::path path = std::filesystem::path(larger.folder()) / "trace";
  options_.store_socket_dir = larger.folder();
  options_.synthetic_context = 6144;  // 320 clusters or more, whichever step is the last
  options_.dense_below = 1024;
  options_.default_attention.policy = PolicyKind::kWave;
  options_.record_trace_file = path;
  for (const auto& [index, quality, clusters] :
       {std::tuple{"bf16", RetrievalQuality::kStandard, 64u},
        {"bf16", RetrievalQuality::kHigh, 192u},
        {"int8", RetrievalQuality::kStandard, 96u},
        {"int8", RetrievalQuality::kHigh, 220u}}) {
    options_.index_dtype = index;
    options_.quality = quality;
    ASSERT_TRUE(Load().ok());
    std::stringstream bytes;
    bytes << std::ifstream(path).rdbuf();
    const test_support::DecodedTrace trace(bytes.str());
    ASSERT_FALSE(trace.steps.empty());
    for (const HeadRetrieval& head : trace.steps.back().heads) {
      EXPECT_EQ(head.clusters.size(), clusters) << index;
    }
  }
}

TEST_F(ServedEngineWithStoreTest, ATraceThatCannotBeWrittenEndsTheStart) {
  options_.record_trace_file = store_.folder();
  const absl::Status status = Load();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--record-trace: "));
  EXPECT_EQ(store_.Stats().workers_attached_total(), 0u);
}

// A trace tells whole clusters.
TEST_F(ServedEngineWithStoreTest, ATraceOfPagesIsRefused) {
  options_.record_trace_file = store_.folder() + "/trace";
  options_.index_dtype = "coded";
  const absl::Status status = Load();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--index-dtype coded"));
}

TEST_F(ServedEngineWithStoreTest, HasTheSlotsThatAFlagSays) {
  options_.block_cache_bytes = 1 << 20;
  ASSERT_TRUE(Load(/*owns_memory=*/true).ok());
  EXPECT_EQ(num_slots_, 512u);
}

TEST_F(ServedEngineWithStoreTest, DoesNotAttachWhatDoesNotFit) {
  options_.block_cache_bytes = size_t{2} << 30;
  EXPECT_EQ(Load().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(store_.Stats().workers_attached_total(), 0u);
}

}  // namespace
}  // namespace retroinfer
