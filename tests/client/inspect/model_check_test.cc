#include "client/inspect/model_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "build_paths.h"

namespace retroinfer::client {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const char kModel[] = RETROINFER_SOURCE_DIR "/models/needle";

TEST(ReadModelFiles, ReadsAModel) {
  const auto files = ReadModelFiles(kModel);
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_GT(files->weight_bytes_cpu, size_t{1} << 20);
  EXPECT_EQ(files->config.context_length, 131072);
}

TEST(ReadModelFiles, MissesEachFileThatTheWorkerNeeds) {
  std::string pattern = (fs::temp_directory_path() / "retroinfer-XXXXXX").string();
  const fs::path folder = ::mkdtemp(pattern.data());
  for (const char* missing : {"config.json", "tokenizer.json", "model.safetensors"}) {
    fs::remove_all(folder);
    fs::copy(kModel, folder, fs::copy_options::recursive);
    ASSERT_TRUE(fs::remove(folder / missing)) << missing;
    const auto files = ReadModelFiles(folder);
    EXPECT_FALSE(files.ok()) << missing;
    EXPECT_THAT(std::string(files.status().message()), HasSubstr(missing));
  }
  fs::remove_all(folder);
}

TEST(ReadModelFiles, ExplainsAHubId) {
  EXPECT_THAT(std::string(ReadModelFiles("some/model").status().message()),
              HasSubstr("hf download some/model"));
}

TEST(ReadDraftModelFiles, TakesAModelOfTheSameTokens) {
  const auto served = ReadModelFiles(kModel);
  ASSERT_TRUE(served.ok()) << served.status();
  EXPECT_TRUE(ReadDraftModelFiles(kModel, *served).ok());
  const auto other = ReadDraftModelFiles(
      RETROINFER_SOURCE_DIR "/tests/golden/gguf/qwen2-00001-of-00002.gguf", *served);
  EXPECT_EQ(other.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("--draft-model: "));
  EXPECT_THAT(std::string(other.status().message()), HasSubstr("the same tokens"));
  EXPECT_THAT(std::string(ReadDraftModelFiles("/nowhere", *served).status().message()),
              HasSubstr("--draft-model: "));
}

}  // namespace
}  // namespace retroinfer::client
