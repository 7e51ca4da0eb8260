#include "http_gateway/server/cors.h"

#include "absl/strings/ascii.h"

namespace retroinfer::gateway {
namespace {

constexpr size_t kListBytesMax = 1024;
constexpr char kUsualHeaders[] = "Authorization, Content-Type, X-Api-Key, X-Request-Id";

// RFC 9110's token.
bool IsTokenCharacter(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}

}  // namespace

bool IsHeaderNameList(std::string_view list) {
  if (list.size() > kListBytesMax) return false;
  bool in_name = false, has_ended = false;  // the name before a space
  for (const char c : list) {
    if (c == ',') {
      if (!in_name && !has_ended) return false;
      in_name = has_ended = false;
    } else if (c == ' ' || c == '\t') {
      has_ended = has_ended || in_name;
      in_name = false;
    } else {
      if (has_ended || !IsTokenCharacter(c)) return false;
      in_name = true;
    }
  }
  return in_name || has_ended;
}

void AddCorsHeaders(const std::vector<std::string>& origins, const HttpRequest& request,
                    HttpHeaders* headers) {
  if (origins.empty()) return;
  headers->emplace_back("Vary", "Origin");
  for (const std::string& origin : origins) {
    if (request.origin.empty() || (origin != "*" && origin != request.origin)) continue;
    headers->emplace_back("Access-Control-Allow-Origin", origin);
    headers->emplace_back("Access-Control-Expose-Headers",
                          "X-Request-Id, X-RetroInfer-Ignored, Retry-After");
    if (request.method == "OPTIONS") {
      headers->emplace_back("Access-Control-Allow-Methods", "GET, POST");
      const bool asks = IsHeaderNameList(request.requested_headers);
      headers->emplace_back("Access-Control-Allow-Headers",
                            asks ? request.requested_headers : kUsualHeaders);
      headers->emplace_back("Access-Control-Max-Age", "600");
    }
    break;
  }
}

}  // namespace retroinfer::gateway
