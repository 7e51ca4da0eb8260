#include "text/constraint/utf8_paths.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

#include "text/tokenizer/utf8.h"

namespace retroinfer::constraint {
namespace {

size_t NumPaths(const std::vector<Utf8Path>& paths, char32_t code) {
  std::string bytes;
  AppendUtf8(code, bytes);
  size_t count = 0;
  for (const Utf8Path& path : paths) {
    bool reads = path.length == bytes.size();
    for (size_t i = 0; reads && i < path.length; ++i) {
      const auto byte = static_cast<uint8_t>(bytes[i]);
      reads = path.bytes[i].first <= byte && byte <= path.bytes[i].last;
    }
    count += reads ? 1 : 0;
  }
  return count;
}

TEST(Utf8PathsTest, ReadEachCharacterOfTheRangeOnceAndNoOther) {
  std::mt19937 random(9);
  const CodePointRange fixed[] = {{0, 0x7F},    {0, 0xD7FF},    {0xE000, 0x10FFFF},
                                  {0x7F, 0x80}, {0x7FF, 0x800}, {0xFFFF, 0x10000},
                                  {0xE9, 0xE9}};
  for (int round = 0; round < 40; ++round) {
    char32_t first = random() % 0xD800;
    char32_t last = first + random() % (0xD800 - first);
    if (round % 2 == 1) {
      first = 0xE000 + random() % 0x101FFF;
      last = first + random() % (0x110000 - first);
    }
    const CodePointRange range = round < 7 ? fixed[round] : CodePointRange{first, last};
    const std::vector<Utf8Path> paths = Utf8PathsOf(range);
    for (int i = 0; i < 2000; ++i) {
      char32_t code = random() % 0x110000;
      if (i < 4) code = i % 2 == 0 ? range.first : range.last;
      if (i >= 4 && i < 8 && range.first > 0) code = range.first - 1;
      if (code >= 0xD800 && code <= 0xDFFF) continue;
      EXPECT_EQ(NumPaths(paths, code), range.first <= code && code <= range.last ? 1u : 0u)
          << static_cast<uint32_t>(code);
    }
  }
}

}  // namespace
}  // namespace retroinfer::constraint
