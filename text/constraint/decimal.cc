#include "text/constraint/decimal.h"

#include <algorithm>
#include <cstddef>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

namespace retroinfer::constraint {
namespace {

constexpr size_t kDigitsMax = 40;

int CompareMagnitudes(const Decimal& a, const Decimal& b) {
  if (a.whole.size() != b.whole.size()) return a.whole.size() < b.whole.size() ? -1 : 1;
  if (const int whole = a.whole.compare(b.whole); whole != 0) return whole;
  return a.fraction.compare(b.fraction);  // without trailing zeros, a prefix is the smaller one
}

bool AllDigits(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](unsigned char byte) { return absl::ascii_isdigit(byte); });
}

}  // namespace

std::optional<Decimal> Decimal::Parse(std::string_view text) {
  Decimal decimal;
  if (!text.empty() && text[0] == '-') {
    decimal.is_negative = true;
    text.remove_prefix(1);
  }
  int exponent = 0;
  if (const size_t e = text.find_first_of("eE"); e != std::string_view::npos) {
    std::string_view digits = text.substr(e + 1);
    if (!digits.empty() && digits[0] == '+') digits.remove_prefix(1);
    if (!absl::SimpleAtoi(std::string(digits), &exponent) || exponent < -400 || exponent > 400) {
      return std::nullopt;
    }
    text = text.substr(0, e);
  }
  const size_t point = text.find('.');
  std::string whole(text.substr(0, point));
  std::string fraction(point == std::string_view::npos ? "" : text.substr(point + 1));
  if (whole.empty() || !AllDigits(whole) || !AllDigits(fraction)) return std::nullopt;
  for (; exponent > 0; --exponent) {
    whole.push_back(fraction.empty() ? '0' : fraction[0]);
    if (!fraction.empty()) fraction.erase(0, 1);
  }
  for (; exponent < 0; ++exponent) {
    fraction.insert(fraction.begin(), whole.empty() ? '0' : whole.back());
    if (!whole.empty()) whole.pop_back();
  }
  whole.erase(0, std::min(whole.find_first_not_of('0'), whole.size()));
  while (!fraction.empty() && fraction.back() == '0') fraction.pop_back();
  if (whole.size() > kDigitsMax || fraction.size() > kDigitsMax) return std::nullopt;
  decimal.whole = whole.empty() ? "0" : whole;
  decimal.fraction = fraction;
  if (decimal.IsZero()) decimal.is_negative = false;
  return decimal;
}

int Compare(const Decimal& a, const Decimal& b) {
  if (a.is_negative != b.is_negative) return a.is_negative ? -1 : 1;
  const int magnitudes = CompareMagnitudes(a, b);
  return a.is_negative ? -magnitudes : magnitudes;
}

}  // namespace retroinfer::constraint
