#include "http_gateway/json/ignored_names.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace retroinfer::gateway {

void IgnoredNames::Add(std::string_view path) {
  std::string name;
  bool in_index = false;
  for (const char c : path) {
    if (name.size() == kNameBytesMax) break;
    if (in_index && absl::ascii_isdigit(static_cast<unsigned char>(c))) continue;
    in_index = c == '[';
    const bool may_stand = absl::ascii_isgraph(static_cast<unsigned char>(c)) && c != ',';
    name.push_back(may_stand ? c : '?');
  }
  if (std::find(names_.begin(), names_.end(), name) != names_.end()) return;
  if (names_.size() == kNamesMax) {
    has_more_ = true;
    return;
  }
  names_.push_back(std::move(name));
}

std::string IgnoredNames::ToString() const {
  return absl::StrCat(absl::StrJoin(names_, ", "), has_more_ ? ", ..." : "");
}

}  // namespace retroinfer::gateway
