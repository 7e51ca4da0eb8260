#include "gpu_worker/model/gguf/gguf_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "tests/gpu_worker/model/gguf/gguf_text.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using test_support::Floats;
using test_support::GgufText;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

class GgufFileTest : public ::testing::Test {
 protected:
  absl::StatusOr<GgufFile> Open(const std::string& bytes) {
    return GgufFile::Open(folder_.Write("x.gguf", bytes));
  }
  void ExpectError(const std::string& bytes, absl::StatusCode code, const std::string& part) {
    const auto file = Open(bytes);
    EXPECT_EQ(file.status().code(), code) << file.status();
    EXPECT_THAT(std::string(file.status().message()), HasSubstr("x.gguf"));
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(part));
  }

  test_support::TempFolder folder_;
};

TEST_F(GgufFileTest, TensorsAreWhereTheFileSays) {
  for (const uint32_t version : {2u, 3u}) {
    const auto file = Open(GgufText()
                               .Version(version)
                               .Int("general.alignment", 32)
                               .Tensor("vector", {3}, 0, Floats({1, 2, 3}))
                               .Tensor("matrix", {2, 3}, 0, Floats({1, 2, 3, 4, 5, 6}))
                               .Bytes());
    ASSERT_TRUE(file.ok()) << file.status();
    const GgufTensor& matrix = file->tensors().at("matrix");
    EXPECT_THAT(matrix.shape, ElementsAre(3, 2));
    EXPECT_EQ(matrix.rows(), 3);
    EXPECT_EQ(matrix.cols(), 2);
    ASSERT_EQ(matrix.bytes.size(), 24u);
    float last = 0;
    std::memcpy(&last, matrix.bytes.data() + 20, sizeof(last));
    EXPECT_EQ(last, 6);
    EXPECT_EQ(matrix.file_offset % 32, 0u);
    EXPECT_EQ(file->tensors().at("vector").rows(), 1);
  }
}

TEST_F(GgufFileTest, OtherFilesAreRefusedByWhatTheyAre) {
  ExpectError("", kInvalid, "is the file complete?");
  ExpectError("GGU", kInvalid, "is the file complete?");
  ExpectError("GGML" + std::string(60, '\0'), kInvalid, "begins with \"GGML\" instead of \"GGUF\"");
  ExpectError("\x01\xff" + std::string(60, '\0'), kInvalid, "begins with");
  ExpectError(GgufText().Version(1).Bytes(), kUnimplemented,
              "is of version 1 of GGUF; versions 2 and 3 are supported");
  ExpectError(GgufText().Version(4).Bytes(), kUnimplemented, "is of version 4");
  ExpectError(GgufText().Version(3u << 24).Bytes(), kUnimplemented, "is a big-endian GGUF file");
  ExpectError("version https://git-lfs.github.com/spec/v1\noid sha256:abc\nsize 12\n", kInvalid,
              "LFS");
  EXPECT_EQ(GgufFile::Open(folder_.File("none.gguf")).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(GgufFileTest, EveryCutIsFound) {
  const std::string whole = GgufText()
                                .Text("general.architecture", "llama")
                                .Texts("tokens", {"a", "b"})
                                .Tensor("a", {2}, 0, Floats({1, 2}))
                                .Tensor("b", {4}, 0, Floats({1, 2, 3, 4}))
                                .Bytes();
  // The last tensor's padding may be missing.
  const size_t needed = whole.size() - 16;
  for (size_t size = 0; size < needed; ++size) {
    ASSERT_FALSE(Open(whole.substr(0, size)).ok()) << size;
  }
  EXPECT_TRUE(Open(whole.substr(0, needed)).ok());
}

TEST_F(GgufFileTest, TensorsThatCannotBeAreRefused) {
  const std::string four = Floats({1, 2, 3, 4});
  ExpectError(GgufText().Tensor("t", {}, 0, "").Bytes(), kInvalid, "has 0 dimensions");
  ExpectError(GgufText().Tensor("t", {1, 1, 1, 1, 1}, 0, four).Bytes(), kInvalid,
              "has 5 dimensions");
  ExpectError(GgufText().Tensor("t", {0}, 0, "").Bytes(), kInvalid, "a dimension of 0");
  ExpectError(GgufText().Tensor("t", {uint64_t{1} << 40, uint64_t{1} << 40}, 0, four).Bytes(),
              kInvalid, "which cannot be");
  ExpectError(GgufText().Tensor("t", {uint64_t{1} << 62}, 0, four).Bytes(), kInvalid,
              "overflows 64 bits");
  ExpectError(GgufText().Tensor("t", {uint64_t{1} << 50}, 0, four).Bytes(), kInvalid,
              "is it complete?");
  ExpectError(GgufText().Tensor("t", {31}, 2, std::string(18, 'x')).Bytes(), kInvalid,
              "has rows of 31 elements, no multiple of the 32 in a block of type Q4_0");
  ExpectError(GgufText().Tensor("t", {256}, 23, std::string(136, 'x')).Bytes(), kUnimplemented,
              "tensor \"t\" has type IQ4_XS, which is not supported");
  ExpectError(GgufText().Tensor("t", {256}, 99, "").Bytes(), kInvalid, "has type 99");
  ExpectError(GgufText().Tensor("", {4}, 0, four).Bytes(), kInvalid, "a tensor has no name");
  ExpectError(GgufText().Tensor(std::string(2000, 'n'), {4}, 0, four).Bytes(), kInvalid,
              "the name of a tensor has 2000 bytes");
  ExpectError(GgufText().Tensor("t", {4}, 0, four).Tensor("t", {4}, 0, four).Bytes(), kInvalid,
              "tensor \"t\" occurs twice");
  ExpectError(GgufText().Bytes(GgufFile::kMaxTensors + 1, 0), kInvalid, "65537 tensors");
}

TEST_F(GgufFileTest, OverlapsAndGapsAreRefused) {
  const std::string four = Floats({1, 2, 3, 4});
  const auto at = [&](uint64_t offset) {
    return GgufText().Tensor("a", {4}, 0, four).TensorAt("b", {4}, 0, four, offset).Bytes();
  };
  EXPECT_TRUE(Open(at(32)).ok());
  ExpectError(at(0), kInvalid, "begins at 0 of the data; needs 32");
  ExpectError(at(16), kInvalid, "begins at 16 of the data; needs 32");
  ExpectError(at(64), kInvalid, "begins at 64 of the data; needs 32");
  ExpectError(at(~uint64_t{0}), kInvalid, "needs 32");
}

TEST_F(GgufFileTest, AlignmentsArePowersOfTwo) {
  for (const uint32_t alignment : {0u, 3u, 48u, 1u << 30}) {
    ExpectError(GgufText().Int("general.alignment", alignment).Bytes(), kInvalid,
                "general.alignment");
  }
  EXPECT_TRUE(Open(GgufText().Int("general.alignment", 1).Bytes()).ok());
}

}  // namespace
}  // namespace retroinfer
