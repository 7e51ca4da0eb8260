// What comes over a connection to the gateway: requests, one behind the other. They are the same
// however the bytes are cut into pieces, and keep to the limits.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "common/status/error_reason.h"
#include "http_gateway/http/request_parser.h"

namespace {

using namespace retroinfer::gateway;  // NOLINT: one file

constexpr RequestParser::Limits kLimits = {.head_bytes_max = 2048, .body_bytes_max = 1024};

void Require(bool condition) {
  if (!condition) std::abort();
}

void CheckRequest(const HttpRequest& request) {
  Require(!request.method.empty() && !request.path.empty());
  Require(request.path.front() == '/' || request.path == "*");
  Require(request.path.find('?') == std::string::npos);
  Require(request.body.size() <= kLimits.body_bytes_max);
  Require(request.has_body || request.body.empty());
  // What is logged, answered or passed on is one line.
  for (const std::string* const text :
       {&request.method, &request.path, &request.query, &request.authorization,
        &request.content_type, &request.request_id, &request.origin}) {
    Require(text->find_first_of(std::string_view("\r\n\0", 3)) == std::string::npos);
  }
}

std::string Show(const HttpRequest& request) {
  std::string shown;
  for (const std::string* const text :
       {&request.method, &request.path, &request.query, &request.authorization,
        &request.content_type, &request.request_id, &request.origin, &request.body}) {
    shown.append(std::to_string(text->size())).append(":").append(*text);
  }
  for (const bool flag :
       {request.is_http11, request.keep_alive, request.expects_continue, request.has_body}) {
    shown.push_back(flag ? 'y' : 'n');
  }
  return shown;
}

// Reads as a connection does, `step` bytes at a time. Ends with the reason of a refusal.
std::vector<std::string> ReadAll(std::string_view input, size_t step) {
  std::vector<std::string> seen;
  RequestParser parser(kLimits);
  std::string waiting;
  while (!input.empty()) {
    waiting.append(input.substr(0, step));
    input.remove_prefix(std::min(step, input.size()));
    while (true) {
      const absl::StatusOr<size_t> used = parser.Put(waiting);
      if (!used.ok()) {
        const std::string reason = retroinfer::common::ReasonOf(used.status()).reason;
        Require(!reason.empty());
        seen.push_back(reason);
        return seen;
      }
      Require(*used <= waiting.size());
      waiting.erase(0, *used);
      Require(parser.body_bytes() <= kLimits.body_bytes_max);
      Require(waiting.size() <= kLimits.head_bytes_max + step);
      if (parser.done()) {
        const HttpRequest request = parser.Take();
        CheckRequest(request);
        seen.push_back(Show(request));
      } else if (*used == 0) {
        break;
      }
    }
  }
  return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::vector<std::string> one_by_one = ReadAll(input, 1);
  // What is over a limit may be noticed sooner or later.
  if (size == 0 || size >= kLimits.body_bytes_max) return 0;
  for (const size_t step : {size_t{7}, size_t{33}, size_t{64}, size}) {
    Require(ReadAll(input, step) == one_by_one);
  }
  return 0;
}
