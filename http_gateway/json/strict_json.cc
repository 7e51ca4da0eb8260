#include "http_gateway/json/strict_json.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"

namespace retroinfer::gateway {
namespace {

using common::JsonValue;

// The document bounds the depth, and knows that no key is there twice.
Json Copy(const JsonValue& value) {
  if (value.IsArray()) {
    Json array = Json::array();
    auto& items = array.get_ref<Json::array_t&>();
    items.reserve(value.Size());
    for (const JsonValue item : value.Elements()) items.push_back(Copy(item));
    return array;
  }
  if (value.IsObject()) {
    Json object = Json::object();
    auto& members = object.get_ref<Json::object_t&>();
    members.reserve(value.Size());
    for (const common::JsonMember& member : value.Members()) {
      members.emplace_back(std::string(member.key), Copy(member.value));
    }
    return object;
  }
  if (const auto text = value.String()) return Json(std::string(*text));
  if (const auto truth = value.Bool()) return Json(*truth);
  if (const auto number = value.Unsigned()) return Json(*number);
  if (const auto number = value.Int()) return Json(*number);
  if (const auto number = value.Number()) return Json(*number);
  return Json(nullptr);
}

}  // namespace

absl::StatusOr<Json> ParseStrictJson(std::string_view text, const common::JsonLimits& limits) {
  const absl::StatusOr<common::JsonDocument> document = common::JsonDocument::Parse(text, limits);
  if (document.ok()) return Copy(document->root());
  return common::WithReason(absl::Status(document.status().code(),
                                         absl::StrCat("the text ", document.status().message())),
                            "INVALID_JSON");
}

}  // namespace retroinfer::gateway
