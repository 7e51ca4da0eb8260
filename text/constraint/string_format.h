// The formats of JSON Schema that are enforced.
#pragma once

#include <optional>
#include <string_view>

namespace retroinfer::constraint {

// Returns the regular expression of a format, for the whole string: "date-time", "date", "time" and
// "duration" (RFC 3339), "email", "hostname", "ipv4", "ipv6", "uuid" and "uri". Nothing for other
// names, which say nothing about the string: by the standard a format is an annotation.
//
// Each text is of the format; not every text of the format is among them: emails have no quotes,
// and URIs have an authority.
std::optional<std::string_view> PatternOfFormat(std::string_view format);

}  // namespace retroinfer::constraint
