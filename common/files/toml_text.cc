#include "common/files/toml_text.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace retroinfer::common {
namespace {

// Follows the quotation marks and the comment of one line.
class LineScanner {
 public:
  // Whether `c`, the next character, is where any letter may be.
  bool IsFree(char c) {
    if (is_comment_) return true;
    const bool was_quoted = quote_ != 0;
    if (is_escaped_) {
      is_escaped_ = false;
    } else if (quote_ == 0) {
      if (c == '"' || c == '\'') quote_ = c;
      is_comment_ = c == '#';
    } else if (c == quote_) {
      quote_ = 0;
    } else {
      is_escaped_ = quote_ == '"' && c == '\\';
    }
    return was_quoted;
  }

 private:
  char quote_ = 0;
  bool is_escaped_ = false;
  bool is_comment_ = false;
};

// Strings of several lines, which would begin within a line's quotation marks and end in another's.
bool HasLongStrings(std::string_view text) {
  return text.find("\"\"\"") != text.npos || text.find("\'\'\'") != text.npos;
}

}  // namespace

absl::Status CheckTomlCharacters(std::string_view text) {
  const bool is_strict = HasLongStrings(text);
  for (int64_t line = 1; !text.empty(); ++line) {
    const std::string_view row = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), row.size() + 1));
    const size_t first = row.find_first_not_of(" \t");
    const bool is_comment = first != std::string_view::npos && row[first] == '#';
    LineScanner scanner;
    for (const char c : row) {
      const auto byte = static_cast<unsigned char>(c);
      const bool is_free = scanner.IsFree(c);
      if ((byte >= 0x20 && byte < 0x7f) || c == '\t' || c == '\r') continue;
      if (byte >= 0x80 && (is_comment || (is_free && !is_strict))) continue;
      return absl::InvalidArgumentError(absl::StrCat(
          "line ", line,
          byte < 0x80 ? ": a control character"
                      : ": a character that is not ASCII, which only comments and strings of one "
                        "line may have"));
    }
  }
  return absl::OkStatus();
}

}  // namespace retroinfer::common
