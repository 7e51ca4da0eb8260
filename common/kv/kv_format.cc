#include "common/kv/kv_format.h"

#include "absl/strings/str_cat.h"

namespace retroinfer {
namespace {

const KvFormat* Find(uint32_t number) {
  for (const KvFormat& format : kKvFormats) {
    if (static_cast<uint32_t>(format.id) == number) return &format;
  }
  return nullptr;
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

absl::StatusOr<KvFormat> KvFormatNamed(std::string_view name) {
  std::string known;
  for (const KvFormat& format : kKvFormats) {
    if (format.name == name) return format;
    absl::StrAppend(&known, known.empty() ? "" : ", ", std::string(format.name));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no KV format '", std::string(name), "'; there are ", known));
}

std::string KvFormatText(uint32_t number) {
  const KvFormat* const format = Find(number);
  return absl::StrCat(number, " (", format == nullptr ? "unknown" : std::string(format->name), ")");
}

}  // namespace retroinfer
