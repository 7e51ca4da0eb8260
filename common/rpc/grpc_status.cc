#include "common/rpc/grpc_status.h"

#include <map>
#include <string>

#include "common/status/error_reason.h"
#include "retroinfer/rpc/v1/error_details.pb.h"

namespace retroinfer::common {
namespace {

constexpr char kErrorInfoUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";

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
  return details.SerializeAsString();
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
  for (const google::protobuf::Any& any : details.details()) {
    rpc::v1::ErrorInfo info;
    if (any.type_url() != kErrorInfoUrl || !info.ParseFromString(any.value()) ||
        info.domain() != kErrorDomain) {
      continue;
    }
    return WithReason(
        std::move(result), info.reason(),
        std::map<std::string, std::string>(info.metadata().begin(), info.metadata().end()));
  }
  return result;
}

}  // namespace retroinfer::common
