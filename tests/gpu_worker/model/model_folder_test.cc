#include "gpu_worker/model/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "build_paths.h"

namespace retroinfer {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

class ModelFolderTest : public ::testing::Test {
 protected:
  ModelFolderTest() {
    std::string pattern = (fs::temp_directory_path() / "retroinfer-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    ::setenv("HF_HUB_CACHE", folder_.c_str(), 1);
  }
  ~ModelFolderTest() override {
    ::unsetenv("HF_HUB_CACHE");
    fs::remove_all(folder_);
  }
  static std::string Message(const std::string& path) {
    return std::string(RequireModelFolder(path).message());
  }
  fs::path folder_;
};

TEST_F(ModelFolderTest, AModelFolderPasses) {
  EXPECT_TRUE(RequireModelFolder(RETROINFER_SOURCE_DIR "/models/needle").ok());
}

TEST_F(ModelFolderTest, AHubIdIsToldFromAPath) {
  EXPECT_EQ(RequireModelFolder("meta-llama/Llama-3.1-8B").code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message("meta-llama/Llama-3.1-8B"),
              HasSubstr("run 'hf download meta-llama/Llama-3.1-8B --local-dir DIR'"));
  for (const char* path : {"/models/Llama", "./models/Llama", "models/a/b", "../x", "Llama"}) {
    EXPECT_EQ(RequireModelFolder(path).code(), absl::StatusCode::kNotFound) << path;
    EXPECT_THAT(Message(path), AllOf(HasSubstr(path), Not(HasSubstr("hub")))) << path;
  }
}

TEST_F(ModelFolderTest, ADownloadedCopyIsNamed) {
  const fs::path snapshot = folder_ / "models--some--model/snapshots/abc";
  fs::create_directories(snapshot);
  EXPECT_THAT(Message("some/model"), HasSubstr("hf download"));
  std::ofstream(snapshot / "config.json") << "{}";
  EXPECT_THAT(Message("some/model"), HasSubstr("downloaded copy at " + snapshot.string()));
  EXPECT_TRUE(RequireModelFolder(snapshot).ok());
}

TEST_F(ModelFolderTest, OtherThingsAreNamed) {
  EXPECT_THAT(Message(folder_), HasSubstr("has no config.json"));
  std::ofstream(folder_ / "model.gguf") << "x";
  EXPECT_THAT(Message(folder_), HasSubstr("GGUF"));
  std::ofstream(folder_ / "weights.zip") << "x";
  EXPECT_THAT(Message(folder_ / "weights.zip"), HasSubstr("is no folder"));
  EXPECT_THAT(Message(folder_ / "model.gguf/x"), HasSubstr("there is no folder"));
}

TEST_F(ModelFolderTest, AFileOfAModelFolderNamesTheFolder) {
  const std::string needle = RETROINFER_SOURCE_DIR "/models/needle";
  EXPECT_THAT(Message(needle + "/model.safetensors"), HasSubstr("name the folder, " + needle));
}

TEST_F(ModelFolderTest, AFolderOfTheHubsCacheNamesTheSnapshot) {
  const fs::path snapshot = folder_ / "models--some--model/snapshots/abc";
  fs::create_directories(snapshot);
  EXPECT_THAT(Message(folder_ / "models--some--model"), HasSubstr("has no config.json"));
  std::ofstream(snapshot / "config.json") << "{}";
  EXPECT_THAT(Message(folder_ / "models--some--model"), HasSubstr("name " + snapshot.string()));
}

TEST_F(ModelFolderTest, FoldersOfOtherKindsAreNamed) {
  std::ofstream(folder_ / "params.json") << "{}";
  EXPECT_THAT(Message(folder_), HasSubstr("makers' own format"));
  std::ofstream(folder_ / "adapter_config.json") << "{}";
  EXPECT_THAT(Message(folder_), HasSubstr("an adapter (LoRA)"));
  fs::create_symlink("../../blobs/abc", folder_ / "config.json");
  EXPECT_THAT(Message(folder_), HasSubstr("is a link to one that is not there"));
}

TEST_F(ModelFolderTest, AnUnfinishedDownloadIsTold) {
  fs::create_directories(folder_ / ".cache/huggingface/download");
  std::ofstream(folder_ / ".cache/huggingface/download/x.incomplete") << "x";
  EXPECT_THAT(Message(folder_), HasSubstr("the download is not complete"));
}

}  // namespace
}  // namespace retroinfer
