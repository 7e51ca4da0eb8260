// What can go wrong before there is a store. With one, see tests/integration.
#include "gpu_worker/server/served_engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace retroinfer {
namespace {

using ::testing::HasSubstr;

absl::Status LoadStatus(const std::string& folder) {
  WorkerOptions options;
  options.model_folder = folder;
  options.store_socket_dir = "/nonexistent/retroinfer";
  options.num_threads = 1;
  return LoadServedEngine(options, CreateCpuBackend(options).value()).status();
}

TEST(ServedEngineTest, NamesTheFileThatAModelFolderLacks) {
  const absl::Status status = LoadStatus("/nonexistent/model");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nonexistent/model/config.json"));
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

}  // namespace
}  // namespace retroinfer
