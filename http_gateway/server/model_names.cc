#include "http_gateway/server/model_names.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status/error_reason.h"

namespace retroinfer::gateway {
namespace {

constexpr char kAny[] = "*";
constexpr size_t kShownBytes = 64;  // of a name that a stranger chose

bool IsName(const std::string& text) {
  return text.size() <= ModelNames::kNameBytesMax &&
         std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isprint(static_cast<unsigned char>(c)); });
}

}  // namespace

ModelNames::ModelNames(std::vector<std::string> names) {
  for (std::string& name : names) {
    if (name == kAny) {
      takes_any_ = true;
    } else if (std::find(names_.begin(), names_.end(), name) == names_.end()) {
      names_.push_back(std::move(name));
    }
  }
}

absl::StatusOr<std::string> ModelNames::NameFor(const std::string& asked,
                                                const std::string& served) const {
  if (asked.empty() || asked == served) return served;
  if (std::find(names_.begin(), names_.end(), asked) != names_.end()) return asked;
  if (takes_any_ && IsName(asked)) return asked;
  return common::WithReason(
      absl::NotFoundError(
          absl::StrCat("the model '", absl::Utf8SafeCEscape(asked.substr(0, kShownBytes)),
                       "' is not served here, '", absl::StrJoin(List(served), "', '"), "' is")),
      "MODEL_NOT_FOUND", {{"param", "model"}});
}

std::vector<std::string> ModelNames::List(const std::string& served) const {
  std::vector<std::string> list = {served};
  for (const std::string& name : names_) {
    if (name != served) list.push_back(name);
  }
  return list;
}

}  // namespace retroinfer::gateway
