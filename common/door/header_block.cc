#include "common/door/header_block.h"

#include <nghttp2/nghttp2.h>

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "common/log/check.h"

namespace retroinfer::common {
namespace {

// An integer with a prefix of 7 bits whose flag bit is 0 (RFC 7541, 5.1): no Huffman coding.
void AppendLength(size_t length, std::string* block) {
  constexpr size_t kPrefixMax = 127;
  if (length < kPrefixMax) {
    block->push_back(static_cast<char>(length));
    return;
  }
  block->push_back(static_cast<char>(kPrefixMax));
  for (length -= kPrefixMax; length >= 128; length /= 128) {
    block->push_back(static_cast<char>(length % 128 + 128));
  }
  block->push_back(static_cast<char>(length));
}

}  // namespace

std::string_view FindHeader(const HeaderList& headers, std::string_view name) {
  for (const auto& [key, value] : headers) {
    if (key == name) return value;
  }
  return "";
}

HeaderDecoder::HeaderDecoder() { RI_CHECK(nghttp2_hd_inflate_new(&inflater_) == 0); }

HeaderDecoder::~HeaderDecoder() { nghttp2_hd_inflate_del(inflater_); }

absl::Status HeaderDecoder::Decode(std::string_view block, size_t bytes_max, HeaderList* headers,
                                   bool* complete) {
  headers->clear();
  *complete = true;
  size_t bytes = 0;
  for (;;) {
    nghttp2_nv header;
    int flags = 0;
    const ssize_t used = nghttp2_hd_inflate_hd2(inflater_, &header, &flags,
                                                reinterpret_cast<const uint8_t*>(block.data()),
                                                block.size(), /*in_final=*/1);
    if (used < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("a header block cannot be decoded: ", nghttp2_strerror(int(used))));
    }
    block.remove_prefix(static_cast<size_t>(used));
    if ((flags & NGHTTP2_HD_INFLATE_EMIT) != 0) {
      bytes += header.namelen + header.valuelen;
      if (bytes > bytes_max) {
        *complete = false;
      } else {
        headers->emplace_back(
            std::string(reinterpret_cast<const char*>(header.name), header.namelen),
            std::string(reinterpret_cast<const char*>(header.value), header.valuelen));
      }
    }
    if ((flags & NGHTTP2_HD_INFLATE_FINAL) != 0) {
      nghttp2_hd_inflate_end_headers(inflater_);
      return absl::OkStatus();
    }
    if (used == 0 && (flags & NGHTTP2_HD_INFLATE_EMIT) == 0) {
      return absl::InvalidArgumentError("a header block ends in the middle of a header");
    }
  }
}

void AppendLiteralHeader(std::string_view name, std::string_view value, std::string* block) {
  block->push_back('\0');  // literal without indexing, new name (RFC 7541, 6.2.2)
  AppendLength(name.size(), block);
  block->append(name);
  AppendLength(value.size(), block);
  block->append(value);
}

}  // namespace retroinfer::common
