#include "common/status/error_reason.h"

#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"

namespace retroinfer::common {
namespace {

constexpr char kReasonUrl[] = "retroinfer/reason";
constexpr char kMetadataUrl[] = "retroinfer/metadata/";

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

}  // namespace retroinfer::common
