#include "text/constraint/json_pointer.h"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"

namespace retroinfer::constraint {
namespace {

std::optional<std::string> WithoutPercents(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      plain.push_back(text[i]);
      continue;
    }
    const std::string_view digits = text.substr(i + 1, 2);
    uint32_t byte = 0;
    if (digits.size() != 2 || !absl::ascii_isxdigit(static_cast<unsigned char>(digits[0])) ||
        !absl::SimpleHexAtoi(std::string(digits), &byte)) {
      return std::nullopt;
    }
    plain.push_back(static_cast<char>(byte));
    i += 2;
  }
  return plain;
}

std::optional<common::JsonValue> Child(const common::JsonValue& value, std::string_view name) {
  if (value.IsObject()) return value.Find(name);
  size_t index = 0;
  if (!value.IsArray() || !absl::SimpleAtoi(std::string(name), &index)) return std::nullopt;
  for (const common::JsonValue element : value.Elements()) {
    if (index-- == 0) return element;
  }
  return std::nullopt;
}

}  // namespace

std::string PointerTo(std::string_view pointer, std::string_view name) {
  return absl::StrCat(std::string(pointer), "/",
                      absl::StrReplaceAll(std::string(name), {{"~", "~0"}, {"/", "~1"}}));
}

std::optional<FoundValue> FindByPointer(const common::JsonValue& root, std::string_view reference) {
  const std::optional<std::string> plain = WithoutPercents(reference);
  if (!plain.has_value() || plain->empty() || (*plain)[0] != '#') return std::nullopt;
  FoundValue found = {root, "#"};
  if (*plain == "#") return found;
  if ((*plain)[1] != '/') return std::nullopt;
  const std::vector<std::string> parts = absl::StrSplit(plain->substr(2), '/');
  for (const std::string& part : parts) {
    const std::string name = absl::StrReplaceAll(part, {{"~1", "/"}, {"~0", "~"}});
    const std::optional<common::JsonValue> child = Child(found.value, name);
    if (!child.has_value()) return std::nullopt;
    found = {*child, PointerTo(found.pointer, name)};
  }
  return found;
}

}  // namespace retroinfer::constraint
