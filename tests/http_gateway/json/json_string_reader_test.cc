#include "http_gateway/json/json_string_reader.h"

#include <gtest/gtest.h>

namespace retroinfer::gateway {
namespace {

// Of a text behind the opening quote; "!" where it is invalid, "?" where it has no end.
std::string Read(const std::string& text) {
  JsonStringReader reader;
  std::string out;
  for (const char c : text) {
    const JsonStringReader::Verdict verdict = reader.Take(c, &out);
    if (verdict == JsonStringReader::Verdict::kInvalid) return out + "!";
    if (verdict == JsonStringReader::Verdict::kEnd) return out;
  }
  return out + "?";
}

TEST(JsonStringReader, ReadsWhatEscapesMean) {
  EXPECT_EQ(Read(R"(a\"\\\/\b\f\n\r\tz")"), "a\"\\/\b\f\n\r\tz");
  EXPECT_EQ(Read(R"(\u0041\u00e9\u20AC\ud83d\ude00")"), "A\u00e9\u20ac\U0001F600");
  EXPECT_EQ(Read("a\nb\""), "a\nb");
}

TEST(JsonStringReader, HalvesOfPairsAreReplaced) {
  EXPECT_EQ(Read(R"(\ud83dx")"), "\ufffdx");
  EXPECT_EQ(Read(R"(\ude00")"), "\ufffd");
  EXPECT_EQ(Read(R"(\ud83d\ud83d\ude00")"), "\ufffd\U0001F600");
  EXPECT_EQ(Read(R"(\ud83d\n")"), "\ufffd\n");
}

TEST(JsonStringReader, RefusesWhatIsNoEscape) {
  EXPECT_EQ(Read(R"(a\x")"), "a!");
  EXPECT_EQ(Read(R"(\u12g4")"), "!");
  EXPECT_EQ(Read("abc"), "abc?");
}

}  // namespace
}  // namespace retroinfer::gateway
