#include "gpu_worker/model/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gpu_worker/model/safetensors_text.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using test_support::SafetensorsText;
using test_support::TempFolder;
using ::testing::HasSubstr;

class CheckpointTest : public ::testing::Test {
 protected:
  void WriteIndex(const std::string& weight_map) {
    folder_.Write("model.safetensors.index.json", "{\"weight_map\": " + weight_map + "}");
  }
  void WriteShards() {
    folder_.Write("1.safetensors", SafetensorsText({{"a", "F32", {1}, "aaaa"}}));
    folder_.Write("2.safetensors",
                  SafetensorsText({{"b", "F16", {2}, "bbbb"}, {"c", "BF16", {1}, "cc"}}));
  }
  void ExpectError(absl::StatusCode code, const std::string& part) {
    const auto checkpoint = Checkpoint::Open(folder_.path());
    ASSERT_EQ(checkpoint.status().code(), code) << checkpoint.status();
    EXPECT_THAT(std::string(checkpoint.status().message()), HasSubstr(part));
  }

  TempFolder folder_;
};

TEST_F(CheckpointTest, OpensASingleFile) {
  folder_.Write("model.safetensors", SafetensorsText({{"a", "F32", {1}, "aaaa"}}));
  const auto checkpoint = Checkpoint::Open(folder_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->tensors().size(), 1u);
  EXPECT_EQ(checkpoint->total_bytes(), 4u);
}

TEST_F(CheckpointTest, OpensAnIndex) {
  WriteShards();
  WriteIndex(R"({"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors"})");
  const auto checkpoint = Checkpoint::Open(folder_.path());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->tensors().size(), 3u);
  EXPECT_EQ(checkpoint->total_bytes(), 10u);
  const auto b = checkpoint->Find("b", {2});
  ASSERT_TRUE(b.ok());
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(b->stored.data()), 4), "bbbb");
}

TEST_F(CheckpointTest, LinkedFilesAreFine) {
  folder_.Write("blob", SafetensorsText({{"a", "F32", {1}, "aaaa"}}));
  std::filesystem::create_symlink("blob", folder_.File("model.safetensors"));
  EXPECT_TRUE(Checkpoint::Open(folder_.path()).ok());
}

TEST_F(CheckpointTest, FindNamesWhatIsMissing) {
  folder_.Write("model.safetensors", SafetensorsText({{"a", "F32", {1}, "aaaa"}}));
  const auto checkpoint = Checkpoint::Open(folder_.path());
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_TRUE(checkpoint->Find("a", {1}).ok());
  const auto absent = checkpoint->Find("model.norm.weight", {64}).status();
  EXPECT_EQ(absent.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(absent.message()), HasSubstr("\"model.norm.weight\" is missing"));
  const auto other = checkpoint->Find("a", {1, 1}).status();
  EXPECT_EQ(other.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(other.message()), HasSubstr("has shape [1]"));
  EXPECT_THAT(std::string(other.message()), HasSubstr("asks for [1, 1]"));
}

TEST_F(CheckpointTest, AFolderWithoutWeightsIsNotFound) {
  folder_.Write("pytorch_model.bin", "x");
  ExpectError(absl::StatusCode::kNotFound, "needs model.safetensors");
  ExpectError(absl::StatusCode::kNotFound, "pytorch_model.bin is of another format");
  EXPECT_EQ(Checkpoint::Open(folder_.File("absent")).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(CheckpointTest, AMissingShardIsNotFound) {
  WriteShards();
  WriteIndex(R"({"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors",
                 "d": "3.safetensors"})");
  ExpectError(absl::StatusCode::kNotFound, "index.json names 3 files of weights");
  ExpectError(absl::StatusCode::kNotFound, "1 is missing: 3.safetensors; run the download again");
}

TEST_F(CheckpointTest, ADamagedShardIsInvalid) {
  WriteShards();
  folder_.Write("2.safetensors", "short");
  WriteIndex(R"({"a": "1.safetensors", "b": "2.safetensors", "c": "2.safetensors"})");
  ExpectError(absl::StatusCode::kInvalidArgument, "2.safetensors");
}

TEST_F(CheckpointTest, LyingIndexesAreInvalid) {
  constexpr auto kCode = absl::StatusCode::kInvalidArgument;
  WriteShards();
  WriteIndex(R"({"a": "1.safetensors", "x": "2.safetensors", "b": "2.safetensors",
                 "c": "2.safetensors"})");
  ExpectError(kCode, "\"x\" is not in 2.safetensors");
  WriteIndex(R"({"a": "1.safetensors", "b": "2.safetensors"})");
  ExpectError(kCode, "does not place tensor \"c\"");
  WriteIndex(R"({"a": "1.safetensors", "b": "1.safetensors"})");
  ExpectError(kCode, "\"b\" is not in 1.safetensors");
  WriteIndex("{}");
  ExpectError(kCode, "empty");
  WriteIndex("[]");
  ExpectError(kCode, "weight_map");
  WriteIndex(R"({"a": 1})");
  ExpectError(kCode, "\"a\"");
  WriteIndex(R"({"a": "1.safetensors", "a": "2.safetensors"})");
  ExpectError(kCode, "twice");
  WriteIndex("{\"" + std::string(1 << 20, 'n') + "\": 1}");
  ExpectError(kCode, "1048576 bytes");
  folder_.Write("model.safetensors.index.json", "{}");
  ExpectError(kCode, "weight_map");
  folder_.Write("model.safetensors.index.json", "");
  ExpectError(kCode, "index.json");
}

TEST_F(CheckpointTest, ATensorInTwoFilesIsInvalid) {
  WriteShards();
  folder_.Write("3.safetensors", SafetensorsText({{"a", "F32", {1}, "aaaa"}}));
  WriteIndex(R"({"a": "1.safetensors", "b": "3.safetensors"})");
  ExpectError(absl::StatusCode::kInvalidArgument, "3.safetensors");
}

TEST_F(CheckpointTest, NamesThatLeaveTheFolderAreInvalid) {
  TempFolder outside;
  outside.Write("m.safetensors", SafetensorsText({{"a", "F32", {1}, "aaaa"}}));
  const std::string up = "../" + std::filesystem::path(outside.path()).filename().string();
  std::filesystem::create_directory(folder_.File("sub"));
  for (const std::string& name :
       {outside.File("m.safetensors"), up + "/m.safetensors", std::string("..safetensors"),
        std::string("./1.safetensors"), std::string("sub/1.safetensors"), std::string(""),
        std::string(".safetensors"), std::string("1.bin"), std::string("/etc/passwd"),
        std::string("1.safetensors\\u0000.safetensors"), std::string(300, 'n') + ".safetensors"}) {
    WriteIndex("{\"a\": \"" + name + "\"}");
    ExpectError(absl::StatusCode::kInvalidArgument, "in the same folder");
  }
}

TEST_F(CheckpointTest, TooManyFilesAreInvalid) {
  std::string map = "{";
  for (size_t i = 0; i <= Checkpoint::kMaxFiles; ++i) {
    const std::string id = std::to_string(i);
    map += (i == 0 ? "\"" : ",\"") + id + "\": \"" + id + ".safetensors\"";
  }
  WriteIndex(map + "}");
  ExpectError(absl::StatusCode::kInvalidArgument, "more than 4096");
}

TEST_F(CheckpointTest, ADamagedSingleFileIsNotPassedOver) {
  WriteShards();
  WriteIndex(R"({"a": "1.safetensors"})");
  folder_.Write("model.safetensors", "damaged");
  ExpectError(absl::StatusCode::kInvalidArgument, "model.safetensors");
}

}  // namespace
}  // namespace retroinfer
