#include "text/constraint/utf8_paths.h"

#include <algorithm>
#include <string>

#include "text/tokenizer/utf8.h"

namespace retroinfer::constraint {
namespace {

// The last characters of one, two, three and four bytes.
constexpr std::array<char32_t, 4> kLastOfLength = {0x7F, 0x7FF, 0xFFFF, 0x10FFFF};

// Cuts until all bytes but the leading ones with one value take all values of a continuation.
void Append(char32_t first, char32_t last, size_t length, std::vector<Utf8Path>& out) {
  for (size_t tail = 1; tail < length; ++tail) {
    const char32_t mask = (char32_t{1} << (6 * tail)) - 1;
    if ((first & ~mask) == (last & ~mask)) break;
    if ((first & mask) != 0) {
      Append(first, first | mask, length, out);
      Append((first | mask) + 1, last, length, out);
      return;
    }
    if ((last & mask) != mask) {
      Append(first, (last & ~mask) - 1, length, out);
      Append(last & ~mask, last, length, out);
      return;
    }
  }
  std::string low;
  std::string high;
  AppendUtf8(first, low);
  AppendUtf8(last, high);
  Utf8Path path = {.bytes = {}, .length = length};
  for (size_t i = 0; i < length; ++i) {
    path.bytes[i] = {static_cast<uint8_t>(low[i]), static_cast<uint8_t>(high[i])};
  }
  out.push_back(path);
}

}  // namespace

std::vector<Utf8Path> Utf8PathsOf(const CodePointRange& range) {
  std::vector<Utf8Path> paths;
  char32_t first = range.first;
  for (size_t length = 1; length <= kLastOfLength.size() && first <= range.last; ++length) {
    const char32_t last = std::min(range.last, kLastOfLength[length - 1]);
    if (first > last) continue;
    Append(first, last, length, paths);
    first = last + 1;
  }
  return paths;
}

}  // namespace retroinfer::constraint
