#include "common/status/error_reason.h"

#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace retroinfer::common {
namespace {

constexpr char kReasonUrl[] = "retroinfer/reason";
constexpr char kMetadataUrl[] = "retroinfer/metadata/";
constexpr char kRetryUrl[] = "retroinfer/retry_delay_ns";

}  // namespace

absl::Status WithReason(absl::Status status, std::string_view reason,
                        const std::map<std::string, std::string>& metadata) {
  std::vector<std::string> stale;
  status.ForEachPayload([&stale](absl::string_view url, const absl::Cord&) {
    if (absl::StartsWith(url, kMetadataUrl)) stale.emplace_back(url);
  });
  for (const std::string& url : stale) status.ErasePayload(url);
  status.SetPayload(kReasonUrl, absl::Cord(std::string(reason)));
  for (const auto& [key, value] : metadata) {
    status.SetPayload(kMetadataUrl + key, absl::Cord(value));
  }
  return status;
}

ErrorReason ReasonOf(const absl::Status& status) {
  ErrorReason result;
  status.ForEachPayload([&result](absl::string_view url, const absl::Cord& payload) {
    if (url == kReasonUrl) {
      result.reason = std::string(payload);
    } else if (absl::ConsumePrefix(&url, kMetadataUrl)) {
      result.metadata[std::string(url)] = std::string(payload);
    }
  });
  return result;
}

absl::Status WithRetry(absl::Status status, absl::Duration delay) {
  status.SetPayload(kRetryUrl, absl::Cord(absl::StrCat(absl::ToInt64Nanoseconds(delay))));
  return status;
}

std::optional<absl::Duration> RetryDelayOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryUrl);
  int64_t nanoseconds = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &nanoseconds)) {
    return std::nullopt;
  }
  return absl::Nanoseconds(nanoseconds);
}

}  // namespace retroinfer::common
