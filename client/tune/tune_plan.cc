#include "client/tune/tune_plan.h"

#include <algorithm>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace retroinfer::client {
namespace {

constexpr int64_t kShortest = 16384;

}  // namespace

std::vector<int64_t> TuneLengths(int64_t longest) {
  std::vector<int64_t> lengths;
  for (int64_t length = kShortest; length < longest; length *= 2) lengths.push_back(length);
  lengths.push_back(longest);
  return lengths;
}

std::vector<TextWindow> PlanTextWindows(std::span<const int64_t> text_tokens,
                                        std::span<const int64_t> lengths, int64_t context,
                                        int64_t scored, int64_t most) {
  std::vector<TextWindow> windows;
  for (int64_t turn = 0; std::ssize(windows) < most; ++turn) {
    const size_t before = windows.size();
    for (size_t text = 0; text < text_tokens.size() && std::ssize(windows) < most; ++text) {
      int64_t longest = 0;  // that the text has
      for (const int64_t length : lengths) {
        if (length + scored <= text_tokens[text]) longest = length;
      }
      if (longest < context) continue;
      const int64_t begin = turn * (longest + scored);
      if (begin + context + scored <= text_tokens[text]) windows.push_back({text, begin});
    }
    if (windows.size() == before) break;
  }
  return windows;
}

absl::StatusOr<double> ShareOf(std::string_view text) {
  const bool is_percent = text.ends_with('%');
  const std::string number(text.substr(0, text.size() - (is_percent ? 1 : 0)));
  double value = 0;
  if (!absl::SimpleAtod(number, &value) || !(value > 0) || !(value <= 100)) {
    return absl::InvalidArgumentError(
        absl::StrCat("it must be a number above 0, for example 0.005 or 0.5%, and is ", number,
                     is_percent ? "%" : ""));
  }
  return is_percent ? value / 100 : value;
}

}  // namespace retroinfer::client
