#include "gpu_worker/model/gguf/gguf_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <array>
#include <memory>

#include "absl/strings/escaping.h"
#include "gpu_worker/model/gguf/gguf_config.h"
#include "gpu_worker/model/model_table.h"
#include "tests/gpu_worker/model/gguf/gguf_text.h"
#include "tests/gpu_worker/model/gguf/golden_gguf.h"
#include "tests/support/temp_folder.h"

namespace retroinfer {
namespace {

using test_support::GgufText;
using test_support::SmallGgufModel;
using ::testing::HasSubstr;

std::string Sha256(std::span<const std::byte> bytes) {
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest;
  SHA256(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size(), digest.data());
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

class GoldenGgufTensorsTest : public ::testing::TestWithParam<const char*> {};

// Names are those of the model's table, types, shapes and all bytes those of the numbers of which
// the file was made.
TEST_P(GoldenGgufTensorsTest, AreTheNumbersOfTheModel) {
  const auto files = std::make_shared<GgufFiles>(
      GgufFiles::Open(test_support::GoldenGgufModel(GetParam())).value());
  const auto config = ReadGgufConfig(*files);
  ASSERT_TRUE(config.ok()) << config.status();
  const auto tensors = GgufTensors::Create(files, *config);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  const nlohmann::json expected = test_support::GoldenGgufExpected(GetParam())["tensors"];
  EXPECT_EQ(tensors->tensors().size(), expected.size());
  const ModelTable table(*config);
  EXPECT_EQ(table.stored().size(), expected.size());
  for (const auto& [name, tensor] : tensors->tensors()) {
    SCOPED_TRACE(name);
    ASSERT_TRUE(expected.contains(name));
    EXPECT_TRUE(table.stored().contains(name));
    EXPECT_EQ(WeightTypeName(tensor.type), expected[name][0].get<std::string>());
    EXPECT_EQ(tensor.shape, table.stored().at(name).shape);
    EXPECT_EQ(tensor.shape, expected[name][1].get<std::vector<int64_t>>());
    std::vector<std::byte> memory;
    EXPECT_EQ(Sha256(tensor.Bytes(0, tensor.num_bytes(), memory)),
              expected[name][2].get<std::string>());
  }
}

INSTANTIATE_TEST_SUITE_P(, GoldenGgufTensorsTest,
                         ::testing::Values("llama", "qwen2", "qwen3", "qwen3moe"));

class GgufTensorsErrorTest : public ::testing::Test {
 protected:
  void ExpectError(const GgufText& text, const std::string& part) {
    const auto files =
        std::make_shared<GgufFiles>(GgufFiles::Open(folder_.Write("x.gguf", text.Bytes())).value());
    const auto tensors = GgufTensors::Create(files, ReadGgufConfig(*files).value());
    EXPECT_EQ(tensors.status().code(), absl::StatusCode::kInvalidArgument) << tensors.status();
    EXPECT_THAT(std::string(tensors.status().message()), HasSubstr(part));
  }

  test_support::TempFolder folder_;
};

TEST_F(GgufTensorsErrorTest, TensorsOfOtherArchitecturesAreRefused) {
  const auto files = std::make_shared<GgufFiles>(
      GgufFiles::Open(
          folder_.Write(
              "x.gguf",
              SmallGgufModel().Tensor("blk.0.ffn_gate_inp.weight", {1}, 0, "abcd").Bytes()))
          .value());
  const auto config = ReadGgufConfig(*files);
  auto tensors = GgufTensors::Create(files, *config);
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  EXPECT_EQ(ModelTable(*config).stored().count("blk.0.ffn_gate_inp.weight"), 0u);
}

TEST_F(GgufTensorsErrorTest, RowsThatAreNoWholeHeadsAreRefused) {
  ExpectError(SmallGgufModel().Tensor("blk.0.attn_q.weight", {1, 63}, 0, std::string(252, 'x')),
              "has shape [63, 1]; needs whole heads of 64 rows");
  ExpectError(SmallGgufModel().Tensor("blk.0.attn_k.weight", {64}, 0, std::string(256, 'x')),
              "needs whole heads");
}

}  // namespace
}  // namespace retroinfer
