#include "text/tokenizer/same_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "build_paths.h"
#include "text/tokenizer/byte_tokenizer.h"

namespace retroinfer {
namespace {

using testing::HasSubstr;

std::unique_ptr<Tokenizer> Golden(const std::string& name) {
  const auto folder =
      std::filesystem::path(RETROINFER_SOURCE_DIR) / "tests/golden/tokenizer" / name;
  return Tokenizer::Load(folder).value();
}

TEST(SameTokensTest, ATokenizerHasItsOwnTokens) {
  for (const char* const name : {"llama", "qwen", "mistral"}) {
    EXPECT_TRUE(CheckSameTokens(*Golden(name), *Golden(name)).ok()) << name;
  }
}

TEST(SameTokensTest, TheFirstTokenThatDiffersIsNamed) {
  const absl::Status status = CheckSameTokens(*Golden("llama"), *Golden("qwen"));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("in the served model"));
  EXPECT_THAT(std::string(status.message()), testing::StartsWith("token "));
}

TEST(SameTokensTest, BytesAreShownEscaped) {
  const absl::Status status = CheckSameTokens(*CreateByteTokenizer(), *Golden("mistral"));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  for (const char byte : std::string(status.message())) {
    EXPECT_TRUE(byte >= ' ' && byte < 127);
  }
}

}  // namespace
}  // namespace retroinfer
