#include "gpu_worker/model/stored_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/gpu_worker/model/gguf/golden_gguf.h"
#include "tests/gpu_worker/model/golden_model.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

namespace fs = std::filesystem;

using test_support::GoldenGgufModel;
using test_support::GoldenGgufPath;
using ::testing::HasSubstr;

class StoredModelTest : public ::testing::Test {
 protected:
  void Copy(const std::string& file) { fs::copy_file(GoldenGgufPath(file), folder_.File(file)); }
  void ExpectError(const std::string& path, absl::StatusCode code, const std::string& part) {
    const auto model = StoredModel::Open(path);
    EXPECT_EQ(model.status().code(), code) << model.status();
    EXPECT_THAT(std::string(model.status().message()), HasSubstr(part));
  }

  test_support::TempFolder folder_;
};

TEST_F(StoredModelTest, AFolderIsAModel) {
  const std::string folder = test_support::GoldenModelFolder("qwen3-d64-untied-f32");
  for (const std::string& path : {folder, folder + "/"}) {
    const auto model = StoredModel::Open(path);
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ((*model)->name(), "qwen3-d64-untied-f32");
    EXPECT_TRUE((*model)->HasWeights());
    const auto config = (*model)->ReadConfig();
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_TRUE((*model)->ReadGeneration(*config).ok());
    EXPECT_TRUE((*model)->OpenWeights(*config).ok());
    EXPECT_EQ((*model)->ReadTokenizer().status().code(), absl::StatusCode::kNotFound);
  }
}

TEST_F(StoredModelTest, AGgufFileIsAModel) {
  const auto model = StoredModel::Open(GoldenGgufModel("qwen2"));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->name(), "qwen2");
}

TEST_F(StoredModelTest, AFileWithoutAnEndingIsKnownByItsFirstBytes) {
  fs::copy_file(GoldenGgufPath("qwen3.gguf"), folder_.File("sha256-0123"));
  const auto model = StoredModel::Open(folder_.File("sha256-0123"));
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->name(), "sha256-0123");
  ExpectError(folder_.Write("sha256-4567", "GGU"), absl::StatusCode::kInvalidArgument,
              "is no folder");
}

TEST_F(StoredModelTest, AFolderWithOneGgufModelIsThatModel) {
  Copy("qwen2-00001-of-00002.gguf");
  Copy("qwen2-00002-of-00002.gguf");
  folder_.Write("config.json", "{}");  // as repositories of such files often have it
  const auto model = StoredModel::Open(folder_.path());
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ((*model)->name(), FolderName(folder_.path()));
  EXPECT_EQ((*model)->ReadConfig()->family, ModelFamily::kQwen2);
}

TEST_F(StoredModelTest, HeadsOfAFolderArePadded) {
  const auto model = StoredModel::Open(test_support::GoldenModelFolder("phi3-d96-short-f16"));
  ASSERT_TRUE(model.ok()) << model.status();
  const auto config = (*model)->ReadConfig();
  ASSERT_TRUE(config.ok()) << config.status();
  const auto checkpoint = (*model)->OpenWeights(*config);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->tensors().at("model.layers.0.self_attn.qkv_proj.weight").shape,
            (std::vector<int64_t>{6 * 128, 192}));
  EXPECT_TRUE(checkpoint->is_coded());
}

TEST_F(StoredModelTest, SafetensorsComeFirst) {
  Copy("llama.gguf");
  folder_.Write("model.safetensors", "");
  ExpectError(folder_.path(), absl::StatusCode::kInvalidArgument, "config.json");
}

TEST_F(StoredModelTest, OfSeveralGgufModelsOneIsToBeNamed) {
  Copy("llama.gguf");
  Copy("qwen3.gguf");
  ExpectError(folder_.path(), absl::StatusCode::kInvalidArgument,
              "has 2 models in GGUF; name one of them: llama.gguf, qwen3.gguf");
}

TEST_F(StoredModelTest, WhatIsNoneIsExplained) {
  ExpectError(folder_.File("none.gguf"), absl::StatusCode::kNotFound, "none.gguf");
  ExpectError(folder_.path(), absl::StatusCode::kInvalidArgument, "has no config.json");
}

}  // namespace
}  // namespace retroinfer
