#include "common/kv/kv_format.h"

#include <map>
#include <string>

#include "absl/strings/str_cat.h"

namespace retroinfer {
namespace {

const KvFormat* Find(uint32_t number) {
  for (const KvFormat& format : kKvFormats) {
    if (static_cast<uint32_t>(format.id) == number) return &format;
  }
  return nullptr;
}

// "int8 with an index in int8, coded, packed; f32 with an index in f32": of each type of pages.
std::string KnownNames() {
  std::map<std::string, std::string> by_pages;
  for (const KvFormat& format : kKvFormats) {
    std::string& indexes = by_pages[std::string(PagesName(format))];
    absl::StrAppend(&indexes, indexes.empty() ? "" : ", ", std::string(IndexName(format)));
  }
  std::string known;
  for (const auto& [pages, indexes] : by_pages) {
    absl::StrAppend(&known, known.empty() ? "" : "; ", pages, " with an index in ", indexes);
  }
  return known;
}

}  // namespace

absl::StatusOr<KvFormat> KvFormatOfNumber(uint32_t number) {
  if (const KvFormat* const format = Find(number)) return *format;
  std::string known;
  for (const KvFormat& format : kKvFormats) {
    absl::StrAppend(&known, known.empty() ? "" : ", ",
                    KvFormatText(static_cast<uint32_t>(format.id)));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("KV format ", number, " is not known here; known are ", known));
}

absl::StatusOr<KvFormat> KvFormatNamed(std::string_view pages, std::string_view index) {
  for (const KvFormat& format : kChosenKvFormats) {
    if (PagesName(format) == pages && index == "auto") return format;
  }
  for (const KvFormat& format : kKvFormats) {
    if (PagesName(format) == pages && IndexName(format) == index) return format;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no KV format of pages in '", std::string(pages),
                   "' with an index in '", std::string(index), "'; there are ", KnownNames()));
}

std::string KvFormatText(uint32_t number) {
  const KvFormat* const format = Find(number);
  return absl::StrCat(number, " (", format == nullptr ? "unknown" : std::string(format->name), ")");
}

}  // namespace retroinfer
