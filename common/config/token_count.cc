#include "common/config/token_count.h"

#include <cctype>
#include <cmath>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace retroinfer::common {
namespace {

// Digits, with at most one point between them.
bool IsNumber(std::string_view text) {
  bool has_point = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_inside = i > 0 && i + 1 < text.size();
    if (text[i] == '.' && is_inside && !has_point) {
      has_point = true;
    } else if (std::isdigit(static_cast<unsigned char>(text[i])) == 0) {
      return false;
    }
  }
  return !text.empty() && text.size() <= 30;
}

double TokensOfUnit(char unit) {
  switch (std::tolower(static_cast<unsigned char>(unit))) {
    case 'k':
      return 1024;
    case 'm':
      return 1024 * 1024;
    default:
      return 0;
  }
}

}  // namespace

absl::StatusOr<int64_t> ParseTokenCount(std::string_view text, int64_t least, int64_t most) {
  const std::string written = absl::StrCat("'", std::string(text.substr(0, 40)), "'");
  double unit = text.empty() ? 0 : TokensOfUnit(text.back());
  std::string_view number = text;
  if (unit > 0) {
    number.remove_suffix(1);
  } else {
    unit = 1;
  }
  double tokens = 0;
  const bool is_number = IsNumber(number) && absl::SimpleAtod(std::string(number), &tokens);
  tokens *= unit;
  if (!is_number || tokens != std::floor(tokens)) {
    return absl::InvalidArgumentError(
        absl::StrCat(written, " is not a number of tokens: write for example 131072, 128K or 1M"));
  }
  // Doubles hold all whole numbers that a context may have.
  if (tokens < static_cast<double>(least) || tokens > static_cast<double>(most)) {
    return absl::InvalidArgumentError(
        absl::StrCat(written, " is not from ", least, " to ", most, " tokens"));
  }
  return static_cast<int64_t>(tokens);
}

}  // namespace retroinfer::common
