#include "gpu_worker/model/safetensors_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/gpu_worker/model/safetensors_text.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using test_support::SafetensorsText;
using test_support::TempFolder;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class SafetensorsFileTest : public ::testing::Test {
 protected:
  absl::StatusOr<SafetensorsFile> Open(const std::string& content) {
    return SafetensorsFile::Open(folder_.Write("m.safetensors", content));
  }
  void ExpectRefused(const std::string& content, const std::string& part,
                     absl::StatusCode code = absl::StatusCode::kInvalidArgument) {
    const auto file = Open(content);
    ASSERT_EQ(file.status().code(), code) << file.status();
    EXPECT_THAT(std::string(file.status().message()), HasSubstr("m.safetensors"));
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(part));
  }
  // One tensor "t" with this entry, and 16 bytes of data.
  void ExpectEntryRefused(const std::string& entry, const std::string& part) {
    ExpectRefused(SafetensorsText("{\"t\":" + entry + "}", std::string(16, 'd')), part);
  }

  TempFolder folder_;
};

TEST_F(SafetensorsFileTest, ReadsTensors) {
  const auto file = Open(SafetensorsText({{"a", "F32", {2, 1}, "01234567"},
                                          {"b", "BF16", {3}, "abcdef"},
                                          {"scalar", "F16", {}, "xy"},
                                          {"empty", "F32", {0, 7}, ""}}));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ(file->tensors().size(), 4u);
  const HostTensor& a = file->tensors().at("a");
  EXPECT_EQ(a.type, WeightType::kF32);
  EXPECT_THAT(a.shape, ElementsAre(2, 1));
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(a.stored.data()), 8), "01234567");
  const HostTensor& b = file->tensors().at("b");
  EXPECT_EQ(b.type, WeightType::kBf16);
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(b.stored.data()), 6), "abcdef");
  EXPECT_EQ(file->tensors().at("scalar").stored.size(), 2u);
  EXPECT_TRUE(file->tensors().at("empty").stored.empty());
}

TEST_F(SafetensorsFileTest, MetadataAndPaddingAreFine) {
  EXPECT_TRUE(Open(SafetensorsText(R"({"__metadata__":{"format":"pt"}}   )", "")).ok());
}

TEST_F(SafetensorsFileTest, EveryTruncationIsRefused) {
  const std::string whole =
      SafetensorsText({{"a", "F32", {2, 1}, "01234567"}, {"b", "BF16", {3}, "abcdef"}});
  ASSERT_TRUE(Open(whole).ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_EQ(Open(whole.substr(0, size)).status().code(), absl::StatusCode::kInvalidArgument)
        << size;
  }
}

TEST_F(SafetensorsFileTest, APointerOfGitLfsIsRefusedAsSuch) {
  ExpectRefused("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 988097824\n",
                "a pointer of Git LFS to a file of 988097824 bytes");
}

TEST_F(SafetensorsFileTest, LyingHeaderLengthsAreRefused) {
  ExpectRefused(SafetensorsText(3, "{}", ""), "header has 3 bytes, but the file has 10");
  ExpectRefused(SafetensorsText(100'000'001, "{}", ""), "at most 100000000");
  ExpectRefused(SafetensorsText(UINT64_MAX, "{}", ""), "18446744073709551615");
  ExpectRefused(SafetensorsText(UINT64_MAX - 7, "{}", ""), "at most");
  ExpectRefused(SafetensorsText(1, "{}", ""), "not valid JSON");
  ExpectRefused(SafetensorsText(0, "", ""), "not valid JSON");
}

TEST_F(SafetensorsFileTest, LyingEntriesAreRefused) {
  ExpectEntryRefused("5", "an object");
  ExpectEntryRefused("{}", "dtype");
  ExpectEntryRefused(R"({"dtype":4,"shape":[4],"data_offsets":[0,16]})", "dtype");
  ExpectEntryRefused(R"({"dtype":"F32","data_offsets":[0,16]})", "shape");
  ExpectEntryRefused(R"({"dtype":"F32","shape":4,"data_offsets":[0,16]})", "array");
  ExpectEntryRefused(R"({"dtype":"F32","shape":[4]})", "data_offsets");
  ExpectEntryRefused(R"({"dtype":"F32","shape":[4],"data_offsets":16})", "array");
  ExpectEntryRefused(R"({"dtype":"F32","shape":[4],"data_offsets":[16]})", "begin and end");
  ExpectEntryRefused(R"({"dtype":"F32","shape":[4],"data_offsets":[0,16,16]})", "data_offsets");
  ExpectEntryRefused(R"({"dtype":"F32","shape":[-4],"data_offsets":[0,16]})", "shape");
  ExpectEntryRefused(R"({"dtype":"F32","shape":[4.0],"data_offsets":[0,16]})", "shape");
  ExpectEntryRefused(R"({"dtype":"F32","shape":[4],"data_offsets":[-16,0]})", "data_offsets");
  ExpectEntryRefused(R"({"dtype":"F32","shape":[4],"data_offsets":[16,0]})", "not inside");
  ExpectEntryRefused(R"({"dtype":"F32","shape":[5],"data_offsets":[0,20]})", "not inside the 16");
  ExpectEntryRefused(R"({"dtype":"F32","shape":[4],"data_offsets":[0,9223372036854775807]})",
                     "data_offsets");
  ExpectEntryRefused(R"({"dtype":"F32","shape":[4],"data_offsets":[0,18446744073709551616]})",
                     "data_offsets");
  ExpectEntryRefused(R"({"dtype":"F32","shape":[3],"data_offsets":[0,16]})", "needs 12");
  ExpectEntryRefused(R"({"dtype":"BF16","shape":[4],"data_offsets":[0,16]})", "needs 8");
  ExpectEntryRefused(R"({"dtype":"F32","shape":[1,1,1,1,1,1,1,1,4],"data_offsets":[0,16]})",
                     "at most 8");
}

TEST_F(SafetensorsFileTest, ShapesThatOverflowAreRefused) {
  ExpectEntryRefused(R"({"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,16]})",
                     "overflows");
  // 2^32 * 2^32 * 4 wraps to 0 in 64 bits.
  ExpectEntryRefused(R"({"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]})",
                     "overflows");
}

TEST_F(SafetensorsFileTest, OverlapsAndGapsAreRefused) {
  const auto two = [](const char* a, const char* b) {
    return SafetensorsText(std::string(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":)") + a +
                               R"(},"b":{"dtype":"F32","shape":[2],"data_offsets":)" + b + "}}",
                           std::string(16, 'd'));
  };
  EXPECT_TRUE(Open(two("[8,16]", "[0,8]")).ok());
  ExpectRefused(two("[0,8]", "[0,8]"), "overlaps");
  ExpectRefused(two("[0,8]", "[4,12]"), "overlaps");
  ExpectRefused(SafetensorsText(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
                                std::string(16, 'd')),
                "gap");
  ExpectRefused(SafetensorsText(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                                std::string(16, 'd')),
                "has 16 bytes of data");
}

TEST_F(SafetensorsFileTest, OtherElementTypesAreUnimplemented) {
  for (const char* dtype : {"F64", "I8", "BOOL", "F8_E5M2", "bf16", "x"}) {
    ExpectRefused(SafetensorsText({{"t", dtype, {1}, "12345678"}}),
                  "F32, F16, BF16 and F8_E4M3 are", absl::StatusCode::kUnimplemented);
  }
}

TEST_F(SafetensorsFileTest, NamesAreChecked) {
  ExpectRefused(SafetensorsText({{"", "F32", {1}, "1234"}}), "name");
  ExpectRefused(SafetensorsText({{std::string(1025, 'n'), "F32", {1}, "1234"}}), "1025");
  const std::string entry = R"({"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  ExpectRefused(SafetensorsText("{\"t\":" + entry + ",\"t\":" + entry + "}", "1234"), "twice");
}

TEST_F(SafetensorsFileTest, TooManyTensorsAreRefused) {
  std::string header = "{";
  for (size_t i = 0; i <= SafetensorsFile::kMaxTensors; ++i) {
    header += (i == 0 ? "\"" : ",\"") + std::to_string(i) +
              R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})";
  }
  ExpectRefused(SafetensorsText(header + "}", ""), "more than 65536");
}

TEST_F(SafetensorsFileTest, RandomDamageNeverPassesUnseenBounds) {
  const std::string whole = SafetensorsText(
      {{"a", "F32", {2, 2}, std::string(16, 'a')}, {"b", "F16", {5}, "0123456789"}});
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    std::string damaged = whole;
    for (int i = 0; i < 3; ++i) damaged[random() % damaged.size()] = static_cast<char>(random());
    const auto file = Open(damaged);
    if (!file.ok()) continue;
    size_t covered = 0;
    for (const auto& [name, tensor] : file->tensors()) covered += tensor.stored.size();
    EXPECT_LE(covered, damaged.size());
  }
}

}  // namespace
}  // namespace retroinfer
