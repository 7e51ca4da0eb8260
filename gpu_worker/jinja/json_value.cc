#include "gpu_worker/jinja/json_value.h"

#include <simdjson.h>

#include <string>
#include <utility>
#include <vector>

#include "common/status/status_macros.h"
#include "gpu_worker/jinja/errors.h"

namespace retroinfer::jinja {
namespace {

constexpr size_t kDepthMax = 64;

absl::StatusOr<Value> Convert(Workspace& workspace, simdjson::dom::element element);

absl::StatusOr<Value> ConvertArray(Workspace& workspace, const simdjson::dom::array& array) {
  Values items;
  for (const simdjson::dom::element item : array) {
    ASSIGN_OR_RETURN(items.emplace_back(), Convert(workspace, item));
  }
  return workspace.List(std::move(items));
}

absl::StatusOr<Value> ConvertObject(Workspace& workspace, const simdjson::dom::object& object) {
  std::vector<Dict::Entry> entries;
  for (const auto field : object) {
    ASSIGN_OR_RETURN(Value key, workspace.String(field.key));
    ASSIGN_OR_RETURN(Value value, Convert(workspace, field.value));
    entries.emplace_back(std::move(key), std::move(value));
  }
  return workspace.MakeDict(std::move(entries));
}

absl::StatusOr<Value> Convert(Workspace& workspace, simdjson::dom::element element) {
  RETURN_IF_ERROR(workspace.Spend(1));
  if (element.is_null()) return Value(None());
  bool truth = false;
  if (element.get(truth) == simdjson::SUCCESS) return Value(truth);
  int64_t number = 0;
  if (element.get(number) == simdjson::SUCCESS) return Value(static_cast<Int>(number));
  uint64_t large = 0;
  if (element.get(large) == simdjson::SUCCESS) return Value(static_cast<Int>(large));
  double floating = 0;
  if (element.get(floating) == simdjson::SUCCESS) return Value(floating);
  std::string_view text;
  if (element.get(text) == simdjson::SUCCESS) return workspace.String(text);
  simdjson::dom::array array;
  if (element.get(array) == simdjson::SUCCESS) return ConvertArray(workspace, array);
  simdjson::dom::object object;
  if (element.get(object) == simdjson::SUCCESS) return ConvertObject(workspace, object);
  return Error({"a value of JSON of an unknown kind"});
}

}  // namespace

absl::StatusOr<Value> ParseJson(Workspace& workspace, std::string_view text) {
  RETURN_IF_ERROR(workspace.Expect(2 * text.size()));
  simdjson::dom::parser parser;
  if (parser.allocate(text.size(), kDepthMax) != simdjson::SUCCESS) {
    return OverLimit({"no memory for JSON of ", std::to_string(text.size()), " bytes"});
  }
  simdjson::dom::element root;
  const simdjson::error_code error = parser.parse(text.data(), text.size()).get(root);
  if (error != simdjson::SUCCESS) return Error({"no valid JSON: ", simdjson::error_message(error)});
  return Convert(workspace, root);
}

}  // namespace retroinfer::jinja
