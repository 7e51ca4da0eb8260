// JSON that a stranger sent, or that a model wrote, as a value that the gateway works with.
#pragma once

#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/json/json_document.h"

namespace retroinfer::gateway {

// Members stay in the order of the text: templates show tools to the model as the client wrote
// them. A search for a member takes time in proportion to their number.
using Json = nlohmann::ordered_json;

// The number of values bounds what a body takes in memory: 16 bytes each, and what they hold. Its
// length is bounded by RequestParser before (64 MiB), far below bytes_max.
inline constexpr common::JsonLimits kBodyJson = {
    .bytes_max = size_t{1} << 30, .values_max = 4'500'000, .depth_max = 64};

// Returns the one value of `text`, read by common::JsonDocument.
//
// Returns: INVALID_ARGUMENT, reason INVALID_JSON, for what that refuses.
// Cost:    O(n); the stack does not grow with the text.
absl::StatusOr<Json> ParseStrictJson(std::string_view text,
                                     const common::JsonLimits& limits = kBodyJson);

}  // namespace retroinfer::gateway
