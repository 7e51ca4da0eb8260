// Turns the bytes of a connection into requests.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "http_gateway/http/http_message.h"

namespace retroinfer::gateway {

// Boost.Beast's parser, and what it leaves to its user: a request whose length can be read in two
// ways (both Content-Length and Transfer-Encoding, either of them twice, an encoding that is not
// "chunked", folded lines, an extension of a chunk that does not end with its line) is refused, so
// that no proxy before this server can be made to see other requests than it does.
//
// Threads: one at a time.
class RequestParser {
 public:
  struct Limits {
    size_t head_bytes_max = 16 << 10;
    size_t body_bytes_max = size_t{64} << 20;
  };
  explicit RequestParser(const Limits& limits);
  ~RequestParser();

  // Takes bytes off the beginning of `data` and returns how many; the rest must come again, with
  // more behind it. Takes a head as a whole, and stops at its end and at the end of the request.
  //
  // Returns: INVALID_ARGUMENT, reason BAD_REQUEST, HEADERS_TOO_LARGE or BODY_TOO_LARGE. The
  //          connection is of no further use then.
  absl::StatusOr<size_t> Put(std::string_view data);

  bool has_begun() const { return has_begun_; }  // bytes of a request have come
  bool head_done() const { return head_done_; }
  bool done() const;
  // REQUIRES: head_done(). Without the body.
  const HttpRequest& head() const { return request_; }
  size_t body_bytes() const;  // that have come

  // Returns the request, and begins with the next one.
  //
  // REQUIRES: done().
  HttpRequest Take();

 private:
  struct Impl;
  void Begin();
  absl::Status ReadHead(std::string_view raw);
  absl::StatusOr<size_t> PutBody(std::string_view data);

  const Limits limits_;
  std::unique_ptr<Impl> impl_;
  HttpRequest request_;
  size_t searched_ = 0;  // bytes of the head in which its end does not begin
  bool has_begun_ = false;
  bool head_done_ = false;
};

}  // namespace retroinfer::gateway
