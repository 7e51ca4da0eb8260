#include "gpu_worker/model/gguf/gguf_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/gpu_worker/model/gguf/gguf_text.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using test_support::Floats;
using test_support::GgufText;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

GgufText Part(uint32_t number, uint32_t count, const std::string& tensor) {
  return GgufText()
      .Int("split.no", number)
      .Int("split.count", count)
      .Int("split.tensors.count", 2)
      .Tensor(tensor, {1}, 0, Floats({1}));
}

class GgufFilesTest : public ::testing::Test {
 protected:
  std::string WriteParts() {
    folder_.Write("m-00002-of-00002.gguf", Part(1, 2, "b").Bytes());
    return folder_.Write("m-00001-of-00002.gguf", Part(0, 2, "a").Text("name", "first").Bytes());
  }
  void ExpectError(const std::string& path, absl::StatusCode code, const std::string& part) {
    const auto files = GgufFiles::Open(path);
    EXPECT_EQ(files.status().code(), code) << files.status();
    EXPECT_THAT(std::string(files.status().message()), HasSubstr(part));
  }

  test_support::TempFolder folder_;
};

TEST_F(GgufFilesTest, OneFileIsAModel) {
  const auto files =
      GgufFiles::Open(folder_.Write("m.gguf", GgufText().Tensor("a", {1}, 0, Floats({1})).Bytes()));
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_EQ(files->tensors().size(), 1u);
}

TEST_F(GgufFilesTest, PartsAreJoinedWhicheverIsNamed) {
  const std::string first = WriteParts();
  for (const std::string& path : {first, folder_.File("m-00002-of-00002.gguf")}) {
    const auto files = GgufFiles::Open(path);
    ASSERT_TRUE(files.ok()) << files.status();
    EXPECT_EQ(files->tensors().size(), 2u);
    EXPECT_EQ(files->path(), first);
    EXPECT_EQ(*files->metadata().String("name", 10), "first");
  }
}

TEST_F(GgufFilesTest, PartsThatDoNotBelongTogetherAreRefused) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  const std::string first = WriteParts();
  folder_.Write("m-00002-of-00002.gguf", Part(1, 2, "a").Bytes());
  ExpectError(first, kInvalid, "tensor \"a\" is in another part, too");
  folder_.Write("m-00002-of-00002.gguf", Part(0, 2, "b").Bytes());
  ExpectError(first, kInvalid, "split.no");
  folder_.Write("m-00002-of-00002.gguf", Part(1, 3, "b").Bytes());
  ExpectError(first, kInvalid, "split.count");
  folder_.Write("m-00002-of-00002.gguf", GgufText().Bytes());
  ExpectError(first, kInvalid, "split.count\": is missing");
  folder_.Write("m-00002-of-00002.gguf", Part(1, 2, "b").Tensor("c", {1}, 0, Floats({1})).Bytes());
  ExpectError(first, kInvalid, "split.tensors.count");
  ExpectError(folder_.Write("other.gguf", Part(0, 2, "a").Bytes()), kInvalid,
              "needs to end with -00001-of-00002.gguf");
  ExpectError(folder_.Write("n-00001-of-00001.gguf", Part(0, 5000, "a").Bytes()), kInvalid,
              "is 5000; needs 0 to 4096");
}

TEST_F(GgufFilesTest, MissingPartsAreNamed) {
  ExpectError(folder_.Write("m-00001-of-00003.gguf", Part(0, 3, "a").Bytes()),
              absl::StatusCode::kNotFound,
              "of which 2 are missing: m-00002-of-00003.gguf, m-00003-of-00003.gguf");
}

TEST_F(GgufFilesTest, NamesLeaveOutWhatSaysThePart) {
  EXPECT_EQ(GgufModelName("/a/Qwen-Q4_K_M.gguf"), "Qwen-Q4_K_M");
  EXPECT_EQ(GgufModelName("/a/Qwen-00002-of-00003.gguf"), "Qwen");
  EXPECT_EQ(GgufModelName("Qwen-0000x-of-00003.gguf"), "Qwen-0000x-of-00003");
  EXPECT_EQ(GgufModelName("-00002-of-00003.gguf"), "");
}

TEST_F(GgufFilesTest, AFolderHasModelsNotParts) {
  WriteParts();
  folder_.Write("other.gguf", "");
  folder_.Write(".hidden.gguf", "");
  folder_.Write("readme.md", "");
  EXPECT_THAT(GgufModelsIn(folder_.path()),
              ElementsAre(folder_.File("m-00001-of-00002.gguf"), folder_.File("other.gguf")));
  EXPECT_TRUE(GgufModelsIn(folder_.File("none")).empty());
}

}  // namespace
}  // namespace retroinfer
