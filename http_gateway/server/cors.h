// What lets pages of other origins use the API.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "http_gateway/http/http_message.h"

namespace retroinfer::gateway {

// Adds the headers that a browser asks for to those of an answer. `origins`: that pages may come
// from; "*": any; empty: no CORS. A preflight is allowed the headers that it asks for.
void AddCorsHeaders(const std::vector<std::string>& origins, const HttpRequest& request,
                    HttpHeaders* headers);

// Whether `list` is names of headers, separated by commas, and no longer than 1 KiB.
bool IsHeaderNameList(std::string_view list);

}  // namespace retroinfer::gateway
