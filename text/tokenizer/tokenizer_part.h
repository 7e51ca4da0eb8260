// A part of tokenizer.json, which says of which type it is.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/json/json_reader.h"
#include "common/status/status_macros.h"

namespace retroinfer {

inline absl::StatusOr<std::string_view> TypeOfPart(const common::JsonReader& value) {
  ASSIGN_OR_RETURN(const common::JsonReader type, value.Required("type"));
  return type.AsString();
}

inline absl::Status UnknownType(const common::JsonReader& value, std::string_view type) {
  return value.Error(absl::StrCat("type ", absl::CHexEscape(std::string(type.substr(0, 100))),
                                  " is not supported"));
}

}  // namespace retroinfer
