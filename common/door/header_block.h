// Header blocks of HTTP/2 (HPACK, RFC 7541).
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"

struct nghttp2_hd_inflater;

namespace retroinfer::common {

using HeaderList = std::vector<std::pair<std::string, std::string>>;  // name, value

// Returns the value of the first header of that name; empty if there is none.
std::string_view FindHeader(const HeaderList& headers, std::string_view name);

// Decodes the header blocks of one direction of one connection, all of them and in order, because
// each may refer to those before.
//
// Threads: one at a time.
class HeaderDecoder {
 public:
  HeaderDecoder();
  ~HeaderDecoder();
  HeaderDecoder(const HeaderDecoder&) = delete;
  HeaderDecoder& operator=(const HeaderDecoder&) = delete;

  // Decodes a whole block into `headers`, but at most `bytes_max` bytes of names and values: a few
  // bytes can stand for very many. `*complete` says whether that was all; the decoder is ready for
  // the next block in either case.
  //
  // Returns: INVALID_ARGUMENT for a block that is no HPACK; the connection cannot go on then.
  absl::Status Decode(std::string_view block, size_t bytes_max, HeaderList* headers,
                      bool* complete);

 private:
  nghttp2_hd_inflater* inflater_ = nullptr;
};

// Appends one header as a literal that refers to nothing and that nothing can refer to.
void AppendLiteralHeader(std::string_view name, std::string_view value, std::string* block);

}  // namespace retroinfer::common
