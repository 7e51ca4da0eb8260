#include "http_gateway/http/http_message.h"

#include <boost/beast/http/status.hpp>

#include "absl/strings/str_cat.h"

namespace retroinfer::gateway {

std::string_view ReasonPhrase(int status) {
  const auto text = boost::beast::http::obsolete_reason(
      boost::beast::http::int_to_status(static_cast<unsigned>(status)));
  return {text.data(), text.size()};
}

std::string FormatHead(int status, std::string_view content_type, const HttpHeaders& headers,
                       int64_t length, bool is_http11, bool keep_alive) {
  const bool is_chunked = length < 0 && is_http11;
  const bool has_body = status != 204 && status != 304;
  std::string head =
      absl::StrCat("HTTP/1.1 ", status, " ", std::string(ReasonPhrase(status)), "\r\n");
  if (has_body) absl::StrAppend(&head, "Content-Type: ", std::string(content_type), "\r\n");
  if (is_chunked) {
    head.append("Transfer-Encoding: chunked\r\n");
  } else if (length >= 0 && has_body) {
    absl::StrAppend(&head, "Content-Length: ", length, "\r\n");
  }
  const bool stays = keep_alive && (is_http11 || length >= 0);
  head.append(stays ? "Connection: keep-alive\r\n" : "Connection: close\r\n");
  for (const auto& [name, value] : headers) absl::StrAppend(&head, name, ": ", value, "\r\n");
  head.append("\r\n");
  return head;
}

void AppendChunk(std::string_view data, std::string* out) {
  absl::StrAppend(out, absl::Hex(data.size()), "\r\n");
  out->append(data).append("\r\n");
}

}  // namespace retroinfer::gateway
