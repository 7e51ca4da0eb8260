#include "text/tokenizer/nfc.h"

#include <gtest/gtest.h>

#include <chrono>

namespace retroinfer {
namespace {

std::string Nfc(std::string_view text) {
  const auto normalized = NormalizeNfc(text);
  EXPECT_TRUE(normalized.ok()) << normalized.status();
  return normalized.value_or("");
}

TEST(NfcTest, ComposesAndOrdersMarks) {
  EXPECT_EQ(Nfc(""), "");
  EXPECT_EQ(Nfc("plain\n"), "plain\n");
  EXPECT_EQ(Nfc("e\u0301"), "\u00E9");
  EXPECT_EQ(Nfc("\u212B"), "\u00C5");
  EXPECT_EQ(Nfc("o\u0308\u0323"), "\u1ECD\u0308");
  EXPECT_EQ(Nfc("\u1100\u1161\u11A8"), "\uAC01");
  EXPECT_EQ(Nfc("\u0958"), "\u0915\u093C");  // excluded from composition
  EXPECT_EQ(Nfc("\uFB01"), "\uFB01");        // compatibility forms stay
  EXPECT_EQ(Nfc("\u0301\u0301"), "\u0301\u0301");
}

TEST(NfcTest, NewCharactersHaveNoPart) {
  // U+0327 has a lower class than U+0301 and moves before it, but not past U+1DF6 (Unicode 10).
  EXPECT_EQ(Nfc("x\u0301\u0327"), "x\u0327\u0301");
  EXPECT_EQ(Nfc("x\u0301\u1DF6\u0327"), "x\u0301\u1DF6\u0327");
  EXPECT_EQ(Nfc("e\u1DF6\u0301"), "e\u1DF6\u0301");
  EXPECT_EQ(Nfc("\U00011935\U00011930"), "\U00011935\U00011930");
}

TEST(NfcTest, LongRunsOfMarksTakeNoQuadraticTime) {
  std::string marks = "a";
  while (marks.size() < 2'000'000) marks += "\u0345\u0301\u0323";  // of falling classes
  const auto begin = std::chrono::steady_clock::now();
  const std::string normalized = Nfc(marks);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
  EXPECT_TRUE(normalized.starts_with("\u1EA1\u0323\u0323")) << normalized.substr(0, 12);
  EXPECT_TRUE(normalized.ends_with("\u0345\u0345"));
}

}  // namespace
}  // namespace retroinfer
