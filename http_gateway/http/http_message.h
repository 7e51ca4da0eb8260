// Requests and responses of HTTP/1.1.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace retroinfer::gateway {

struct HttpRequest {
  std::string method;
  std::string path;   // of the target, without its query; begins with '/'
  std::string query;  // without '?'
  bool is_http11 = true;
  bool keep_alive = true;
  bool expects_continue = false;
  bool has_body = false;  // one is announced
  // Headers that somebody looks at; empty: not there.
  std::string authorization;  // that, or "Bearer " and the X-Api-Key
  std::string content_type;
  std::string request_id;  // X-Request-Id
  std::string origin;
  std::string requested_headers;  // Access-Control-Request-Headers
  std::string if_none_match;
  std::string body;
};

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpResponse {
  int status = 200;
  HttpHeaders headers;  // beside those of the length and the connection
  std::string content_type = "application/json";
  std::string body;
};

std::string_view ReasonPhrase(int status);

// The head of a response, with the empty line behind it. `length`: of the body; negative: it is
// chunked, or, to an HTTP/1.0 client, ends with the connection. 204 and 304 have no body, and no
// word about one.
//
// REQUIRES: no line ends in `headers`.
std::string FormatHead(int status, std::string_view content_type, const HttpHeaders& headers,
                       int64_t length, bool is_http11, bool keep_alive);

// Appends `data` as a chunk of a chunked body; the last one is empty.
void AppendChunk(std::string_view data, std::string* out);

}  // namespace retroinfer::gateway
