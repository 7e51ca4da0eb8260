#include "common/rpc/grpc_status.h"

#include <map>
#include <optional>
#include <string>

#include "common/status/error_reason.h"
#include "retroinfer/rpc/v1/error_details.pb.h"

namespace retroinfer::common {
namespace {

constexpr char kErrorInfoUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";
// A hint of somebody else's is believed up to this, so that its arithmetic stays in range.
constexpr int64_t kRetrySecondsMax = int64_t{1} << 31;

std::string EncodeDetails(const absl::Status& status) {
  const ErrorReason reason = ReasonOf(status);
  rpc::v1::ErrorInfo info;
  info.set_reason(reason.reason.empty() ? absl::StatusCodeToString(status.code()) : reason.reason);
  info.set_domain(kErrorDomain);
  for (const auto& [key, value] : reason.metadata) (*info.mutable_metadata())[key] = value;
  rpc::v1::Status details;
  details.set_code(static_cast<int>(status.code()));
  details.set_message(std::string(status.message()));
  google::protobuf::Any* any = details.add_details();
  any->set_type_url(kErrorInfoUrl);
  info.SerializeToString(any->mutable_value());
  if (const std::optional<absl::Duration> delay = RetryDelayOf(status)) {
    rpc::v1::RetryInfo retry;
    const int64_t nanoseconds = absl::ToInt64Nanoseconds(*delay);
    retry.mutable_retry_delay()->set_seconds(nanoseconds / 1'000'000'000);
    retry.mutable_retry_delay()->set_nanos(static_cast<int32_t>(nanoseconds % 1'000'000'000));
    google::protobuf::Any* const hint = details.add_details();
    hint->set_type_url(kRetryInfoUrl);
    retry.SerializeToString(hint->mutable_value());
  }
  return details.SerializeAsString();
}

// Adds what `details` say to `status`.
absl::Status WithDetails(absl::Status status, const rpc::v1::Status& details) {
  bool has_reason = false, has_retry = false;
  for (const google::protobuf::Any& any : details.details()) {
    rpc::v1::ErrorInfo info;
    rpc::v1::RetryInfo retry;
    if (!has_reason && any.type_url() == kErrorInfoUrl && info.ParseFromString(any.value()) &&
        info.domain() == kErrorDomain) {
      has_reason = true;
      status = WithReason(
          std::move(status), info.reason(),
          std::map<std::string, std::string>(info.metadata().begin(), info.metadata().end()));
    } else if (!has_retry && any.type_url() == kRetryInfoUrl &&
               retry.ParseFromString(any.value()) && retry.retry_delay().seconds() >= 0 &&
               retry.retry_delay().seconds() <= kRetrySecondsMax &&
               retry.retry_delay().nanos() >= 0) {
      has_retry = true;
      status = WithRetry(std::move(status), absl::Seconds(retry.retry_delay().seconds()) +
                                                absl::Nanoseconds(retry.retry_delay().nanos()));
    }
  }
  return status;
}

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()),
                      EncodeDetails(status));
}

absl::Status FromGrpcStatus(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  absl::Status result(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  rpc::v1::Status details;
  if (!details.ParseFromString(status.error_details())) return result;
  return WithDetails(std::move(result), details);
}

}  // namespace retroinfer::common
