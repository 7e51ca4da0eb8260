#include "text/constraint/invalid_constraint.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace retroinfer::constraint {
namespace {

constexpr size_t kShownBytesMax = 60;
constexpr size_t kPlaceBytesMax = 512;  // metadata travels in a header

}  // namespace

absl::Status InvalidConstraint(std::string_view at, std::string_view problem) {
  std::string place = absl::CHexEscape(std::string(at.substr(0, kPlaceBytesMax)));
  if (at.size() > kPlaceBytesMax) place += "...";
  return common::WithReason(
      absl::InvalidArgumentError(absl::StrCat(place, ": ", std::string(problem))),
      "INVALID_CONSTRAINT", {{"at", place}});
}

std::string Shown(std::string_view text) {
  std::string shown = absl::CHexEscape(std::string(text.substr(0, kShownBytesMax)));
  if (text.size() > kShownBytesMax) shown += "...";
  return shown;
}

}  // namespace retroinfer::constraint
