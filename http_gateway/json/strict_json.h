// Reads JSON that a stranger sent.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/status/statusor.h"

namespace retroinfer::gateway {

using Json = nlohmann::json;

struct JsonLimits {
  size_t depth_max = 64;          // of lists and objects in each other
  size_t values_max = 4'500'000;  // in all; a value takes 16 bytes and what it holds
};

// Returns the one value of `text`.
//
// Returns: INVALID_ARGUMENT, reason INVALID_JSON, for what is no JSON by RFC 8259: not UTF-8, NaN,
//          numbers that no double can hold; and for what is JSON but ambiguous or over `limits`: a
//          key twice in an object. The message never repeats bytes of `text`.
// Cost:    O(n); the stack does not grow with the depth.
absl::StatusOr<Json> ParseStrictJson(std::string_view text, const JsonLimits& limits = {});

}  // namespace retroinfer::gateway
