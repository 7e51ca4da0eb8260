// Frames of HTTP/2 (RFC 9113, 4.1).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace retroinfer::common {

inline constexpr std::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
inline constexpr size_t kFrameHeaderBytes = 9;

enum class FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kRstStream = 3,
  kSettings = 4,
  kPushPromise = 5,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};

namespace frame_flag {
inline constexpr uint8_t kEndStream = 0x1;  // of DATA and HEADERS
inline constexpr uint8_t kEndHeaders = 0x4;
inline constexpr uint8_t kPadded = 0x8;
inline constexpr uint8_t kPriority = 0x20;  // of HEADERS
}  // namespace frame_flag

namespace http2_error {
inline constexpr uint32_t kNoError = 0;
inline constexpr uint32_t kProtocolError = 1;
inline constexpr uint32_t kRefusedStream = 7;
inline constexpr uint32_t kCancel = 8;
inline constexpr uint32_t kCompressionError = 9;
inline constexpr uint32_t kEnhanceYourCalm = 11;
}  // namespace http2_error

// OFFSET SIZE DESCRIPTION
// 0      3    bytes of the payload
// 3      1    type
// 4      1    flags
// 5      4    stream (31 bits); 0: the connection
struct FrameHeader {
  uint32_t length = 0;
  FrameType type = FrameType::kData;
  uint8_t flags = 0;
  uint32_t stream = 0;

  bool Has(uint8_t flag) const { return (flags & flag) != 0; }
};

inline uint32_t ReadBigEndian32(std::string_view bytes) {
  const auto byte = [bytes](size_t i) { return uint32_t{static_cast<uint8_t>(bytes[i])}; };
  return byte(0) << 24 | byte(1) << 16 | byte(2) << 8 | byte(3);
}

inline void AppendBigEndian32(uint32_t value, std::string* out) {
  for (const int shift : {24, 16, 8, 0}) out->push_back(static_cast<char>(value >> shift));
}

// Whether a client may send a frame of that type and length, as far as the two alone tell.
inline absl::Status CheckClientFrame(const FrameHeader& frame, size_t control_bytes_max) {
  switch (frame.type) {
    case FrameType::kRstStream:
    case FrameType::kWindowUpdate:
      if (frame.length != 4) return absl::InvalidArgumentError("a frame of 4 bytes has others");
      break;
    case FrameType::kPing:
      if (frame.length != 8) return absl::InvalidArgumentError("a PING has 8 bytes");
      break;
    case FrameType::kSettings:
    case FrameType::kGoAway:
      if (frame.length <= control_bytes_max) break;
      return absl::InvalidArgumentError("a control frame is too long");
    case FrameType::kPushPromise:
      return absl::InvalidArgumentError("clients do not promise");
    default:
      break;
  }
  return absl::OkStatus();
}

// REQUIRES: bytes.size() >= kFrameHeaderBytes.
inline FrameHeader ParseFrameHeader(std::string_view bytes) {
  FrameHeader header;
  header.length = ReadBigEndian32(bytes) >> 8;
  header.type = static_cast<FrameType>(bytes[3]);
  header.flags = static_cast<uint8_t>(bytes[4]);
  header.stream = ReadBigEndian32(bytes.substr(5)) & 0x7fffffff;
  return header;
}

inline void AppendFrameHeader(const FrameHeader& header, std::string* out) {
  for (const int shift : {16, 8, 0}) out->push_back(static_cast<char>(header.length >> shift));
  out->push_back(static_cast<char>(header.type));
  out->push_back(static_cast<char>(header.flags));
  AppendBigEndian32(header.stream, out);
}

inline void AppendFrame(FrameType type, uint8_t flags, uint32_t stream, std::string_view payload,
                        std::string* out) {
  AppendFrameHeader({static_cast<uint32_t>(payload.size()), type, flags, stream}, out);
  out->append(payload);
}

// Appends a whole header block, cut into frames of the size that every peer must take (RFC 9113,
// 4.2).
inline void AppendHeaderBlock(uint32_t stream, bool end_stream, std::string_view block,
                              std::string* out) {
  constexpr size_t kFrameBytesMax = 16384;
  uint8_t flags = end_stream ? frame_flag::kEndStream : 0;
  FrameType type = FrameType::kHeaders;
  do {
    const std::string_view part = block.substr(0, kFrameBytesMax);
    block.remove_prefix(part.size());
    if (block.empty()) flags |= frame_flag::kEndHeaders;
    AppendFrame(type, flags, stream, part, out);
    type = FrameType::kContinuation;
    flags = 0;
  } while (!block.empty());
}

// A frame that ends a stream; `error` is one of http2_error.
inline void AppendReset(uint32_t stream, uint32_t error, std::string* out) {
  std::string code;
  AppendBigEndian32(error, &code);
  AppendFrame(FrameType::kRstStream, 0, stream, code, out);
}

}  // namespace retroinfer::common
