#include "text/jinja/json_value.h"

#include <string>
#include <utility>
#include <vector>

#include "common/json/json_document.h"
#include "common/status/status_macros.h"
#include "text/jinja/errors.h"

namespace retroinfer::jinja {
namespace {

using common::JsonValue;

constexpr size_t kDepthMax = 64;

absl::StatusOr<Value> Convert(Workspace& workspace, const JsonValue& json) {
  RETURN_IF_ERROR(workspace.Spend(1));
  if (json.IsNull()) return Value(None());
  if (const auto truth = json.Bool()) return Value(*truth);
  if (const auto number = json.Int()) return Value(static_cast<Int>(*number));
  if (const auto number = json.Unsigned()) return Value(static_cast<Int>(*number));
  if (const auto number = json.Number()) return Value(*number);
  if (const auto text = json.String()) return workspace.String(*text);
  if (json.IsArray()) {
    Values items;
    for (const JsonValue item : json.Elements()) {
      ASSIGN_OR_RETURN(items.emplace_back(), Convert(workspace, item));
    }
    return workspace.List(std::move(items));
  }
  std::vector<Dict::Entry> entries;
  for (const common::JsonMember& member : json.Members()) {
    ASSIGN_OR_RETURN(Value key, workspace.String(member.key));
    ASSIGN_OR_RETURN(Value value, Convert(workspace, member.value));
    entries.emplace_back(std::move(key), std::move(value));
  }
  return workspace.MakeDict(std::move(entries));
}

}  // namespace

absl::StatusOr<Value> ParseJson(Workspace& workspace, std::string_view text) {
  RETURN_IF_ERROR(workspace.Expect(2 * text.size()));
  // The workspace counts what the values take.
  const absl::StatusOr<common::JsonDocument> document = common::JsonDocument::Parse(
      text, {.bytes_max = text.size(), .values_max = text.size() + 1, .depth_max = kDepthMax});
  if (absl::IsResourceExhausted(document.status())) {
    return OverLimit({"no memory for JSON of ", std::to_string(text.size()), " bytes"});
  }
  if (!document.ok()) return Error({std::string(document.status().message())});
  return Convert(workspace, document->root());
}

}  // namespace retroinfer::jinja
