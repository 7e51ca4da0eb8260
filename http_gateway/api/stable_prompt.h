// Leaves out of conversations what is no part of them and would make each turn another prompt: the
// KV of a prompt is found by its tokens, from the first one on.
#pragma once

#include "http_gateway/json/strict_json.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer::gateway {

// Marks what Anthropic's API shall cache. Clients move it from turn to turn; this server caches
// all.
inline constexpr char kCacheControl[] = "cache_control";

// Returns `list` (tools, or calls of tools) without the cache_control of its entries and of their
// functions. The schema of a function's parameters stays as it is.
Json WithoutCacheControl(const Json& list);

// Removes the line "x-anthropic-billing-header: ..." from the beginning of the first system
// message. Claude Code sends another one with each request. A message of which nothing is left is
// removed, unless it is the only one.
void DropBillingHeader(generation::v1::Messages* conversation);

}  // namespace retroinfer::gateway
