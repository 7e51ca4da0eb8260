#include "common/door/grpc_headers.h"

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/door/header_block.h"
#include "common/door/http2_frame.h"
#include "common/rpc/grpc_status.h"

namespace retroinfer::common {
namespace {

std::string PercentEncoded(std::string_view text) {
  std::string encoded;
  for (const char c : text) {
    if (c >= ' ' && c <= '~' && c != '%') {
      encoded.push_back(c);
    } else {
      encoded += absl::StrFormat("%%%02X", static_cast<uint8_t>(c));
    }
  }
  return encoded;
}

}  // namespace

absl::Duration ParseGrpcTimeout(std::string_view text) {
  uint32_t value = 0;
  constexpr size_t kDigitsMax = 8;
  if (text.size() < 2 || text.size() > kDigitsMax + 1 ||
      !absl::SimpleAtoi(absl::string_view(text.data(), text.size() - 1), &value)) {
    return absl::InfiniteDuration();
  }
  switch (text.back()) {
    case 'H':
      return absl::Hours(value);
    case 'M':
      return absl::Minutes(value);
    case 'S':
      return absl::Seconds(value);
    case 'm':
      return absl::Milliseconds(value);
    case 'u':
      return absl::Microseconds(value);
    case 'n':
      return absl::Nanoseconds(value);
    default:
      return absl::InfiniteDuration();
  }
}

void AppendTrailersOnly(uint32_t stream, const absl::Status& status, std::string* out) {
  const grpc::Status answer = ToGrpcStatus(status);
  std::string block;
  AppendLiteralHeader(":status", "200", &block);
  AppendLiteralHeader("content-type", "application/grpc", &block);
  AppendLiteralHeader("grpc-status", absl::StrCat(static_cast<int>(answer.error_code())), &block);
  AppendLiteralHeader("grpc-message", PercentEncoded(answer.error_message()), &block);
  if (!answer.error_details().empty()) {
    const std::string details = absl::Base64Escape(answer.error_details());
    AppendLiteralHeader("grpc-status-details-bin",
                        std::string_view(details).substr(0, details.find('=')), &block);
  }
  AppendFrame(FrameType::kHeaders, frame_flag::kEndStream | frame_flag::kEndHeaders, stream, block,
              out);
}

}  // namespace retroinfer::common
