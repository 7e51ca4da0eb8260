// JSON pointers (RFC 6901) as URI fragments: "#/properties/a~1b".
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/json/json_document.h"

namespace retroinfer::constraint {

// The pointer of a member or an element of what `pointer` names.
std::string PointerTo(std::string_view pointer, std::string_view name);

struct FoundValue {
  common::JsonValue value;
  std::string pointer;  // in one spelling, whatever the reference's was
};

// Follows `reference`, "#" or "#/...", from the root of a document; percent escapes are understood.
// Nothing if it leads nowhere.
std::optional<FoundValue> FindByPointer(const common::JsonValue& root, std::string_view reference);

}  // namespace retroinfer::constraint
