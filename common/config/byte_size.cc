#include "common/config/byte_size.h"

#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace retroinfer::common {
namespace {

constexpr std::array<char, 4> kUnits = {'k', 'm', 'g', 't'};

// Bytes of a unit in lower case, 0 if there is none of that name.
double BytesOfUnit(const std::string& unit) {
  if (unit.empty() || unit == "b") return 1;
  const bool decimal = unit.size() == 2 && unit[1] == 'b';
  const bool binary = unit.size() == 1 || unit.compare(1, std::string::npos, "i") == 0 ||
                      unit.compare(1, std::string::npos, "ib") == 0;
  if (!decimal && !binary) return 0;
  double bytes = 1;
  for (char letter : kUnits) {
    bytes *= decimal ? 1000 : 1024;
    if (unit[0] == letter) return bytes;
  }
  return 0;
}

}  // namespace

absl::StatusOr<uint64_t> ParseByteSize(std::string_view text) {
  const auto refuse = [&] {
    return absl::InvalidArgumentError(absl::StrCat("'", std::string(text),
                                                   "' is not a size: write for example 512MiB, "
                                                   "8GiB or a number of bytes"));
  };
  size_t end = 0;
  bool has_dot = false;
  while (end < text.size() && (std::isdigit(static_cast<unsigned char>(text[end])) != 0 ||
                               (text[end] == '.' && !has_dot))) {
    has_dot = has_dot || text[end] == '.';
    ++end;
  }
  const std::string number(text.substr(0, end));
  if (number.empty() || number.front() == '.' || number.back() == '.' || number.size() > 30) {
    return refuse();
  }
  std::string unit(text.substr(end));
  if (!unit.empty() && unit.front() == ' ') unit.erase(0, 1);
  absl::AsciiStrToLower(&unit);
  const double unit_bytes = BytesOfUnit(unit);
  if (unit_bytes == 0) return refuse();
  // Whole bytes are exact; a double would lose the last bits of large numbers.
  if (unit_bytes == 1 && !has_dot) {
    const uint64_t bytes = std::strtoull(number.c_str(), nullptr, 10);
    if (number.size() > 19 || bytes > INT64_MAX) return refuse();
    return bytes;
  }
  const double bytes = std::strtod(number.c_str(), nullptr) * unit_bytes;
  if (!(bytes < 9223372036854775807.0)) return refuse();
  return static_cast<uint64_t>(bytes);
}

std::string FormatByteSize(uint64_t bytes) {
  double value = static_cast<double>(bytes);
  int unit = -1;
  while (value >= 1024 && unit + 1 < static_cast<int>(kUnits.size())) {
    value /= 1024;
    ++unit;
  }
  if (unit < 0) return absl::StrCat(bytes, " B");
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.2f %ciB", value,
                std::toupper(static_cast<unsigned char>(kUnits[unit])));
  return text.data();
}

}  // namespace retroinfer::common
