#include "text/tokenizer/utf8.h"

#include <gtest/gtest.h>

#include "tests/text/tokenizer/tokenizer_fixtures.h"

namespace retroinfer {
namespace {

TEST(Utf8Test, EveryCodePointIsReadBack) {
  for (char32_t code = 0; code <= 0x10FFFF; ++code) {
    if (code == 0xD800) code = 0xE000;
    std::string bytes;
    AppendUtf8(code, bytes);
    const Utf8Step step = NextUtf8(std::string(bytes).append("x"));
    ASSERT_EQ(step.kind, Utf8Step::Kind::kCharacter);
    ASSERT_EQ(step.code, code);
    ASSERT_EQ(step.length, bytes.size());
    ASSERT_EQ(LastUtf8(std::string("x").append(bytes)).code, code);
  }
}

TEST(Utf8Test, ErrorsNameTheFirstWrongByte) {
  EXPECT_TRUE(ValidateUtf8("").ok());
  EXPECT_TRUE(ValidateUtf8("a\xC3\xA9\xF0\x9F\x98\x80").ok());
  const struct {
    std::string text;
    const char* offset;
  } cases[] = {
      {"ab\xFFzz", "offset 2"},         {"\x80", "offset 0"},
      {"\xC0\xAF", "offset 0"},          // overlong
      {"x\xE0\x80\x80", "offset 1"},     // overlong
      {"\xED\xA0\x80", "offset 0"},      // a surrogate
      {"\xF4\x90\x80\x80", "offset 0"},  // over U+10FFFF
      {"\xF5\x80\x80\x80", "offset 0"}, {"\xC3\xA9\xC3", "offset 2"},
      {"abc\xF0\x9F\x98", "offset 3"},
  };
  for (const auto& [text, offset] : cases) {
    const absl::Status status = ValidateUtf8(text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(Message(status).find(offset), std::string::npos) << status;
  }
}

std::string Drain(std::string bytes, bool at_end, size_t bytes_left) {
  std::string text;
  DrainUtf8(bytes, at_end, text);
  EXPECT_EQ(bytes.size(), bytes_left);
  return text;
}

// `pattern` with U+FFFD for each F.
std::string WithF(std::string_view pattern) {
  std::string text;
  for (const char c : pattern) {
    if (c == 'F') {
      text.append(kReplacementCharacter);
    } else {
      text.push_back(c);
    }
  }
  return text;
}

// The examples of the Unicode standard, chapter 3, tables 3-8 to 3-11.
TEST(Utf8Test, MaximalSubpartsBecomeOneReplacementEach) {
  EXPECT_EQ(Drain("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", true, 0), WithF("FFFFFFFFA"));
  EXPECT_EQ(Drain("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", true, 0), WithF("FFFFFFFFA"));
  EXPECT_EQ(Drain("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", true, 0), WithF("FFFFFAFFB"));
  EXPECT_EQ(Drain("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", true, 0), WithF("FFFFA"));
}

TEST(Utf8Test, AnUnfinishedCharacterWaits) {
  EXPECT_EQ(Drain("a\xF0\x9F\x98", false, 3), "a");
  EXPECT_EQ(Drain("a\xF0\x9F\x98", true, 0), WithF("aF"));
  EXPECT_EQ(Drain("\xE2\x82\xAC\xE2", false, 1), "\xE2\x82\xAC");
  EXPECT_EQ(Drain("\xE0\x80", false, 0), WithF("FF"));
}

TEST(Utf8Test, WhiteSpaceHas25Members) {
  int count = 0;
  for (char32_t code = 0; code <= 0x10FFFF; ++code) count += IsWhiteSpace(code);
  EXPECT_EQ(count, 25);
  EXPECT_FALSE(IsWhiteSpace(0x180E));
  EXPECT_FALSE(IsWhiteSpace(0x200B));
}

}  // namespace
}  // namespace retroinfer
