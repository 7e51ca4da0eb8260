#include "gpu_worker/server/message_codec.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/empty.pb.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

absl::Status CheckFields(const google::protobuf::Message& message) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const google::protobuf::UnknownFieldSet& unknown = reflection.GetUnknownFields(message);
  if (!unknown.empty()) {
    return common::WithReason(
        absl::InvalidArgumentError(
            absl::StrCat(message.GetTypeName(), " has field ", unknown.field(0).number(),
                         ", which this server does not know: it may be older than the client")),
        "UNKNOWN_FIELD",
        {{"message", message.GetTypeName()}, {"field", absl::StrCat(unknown.field(0).number())}});
  }
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const google::protobuf::FieldDescriptor* field : fields) {
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) continue;
    if (!field->is_repeated()) {
      RETURN_IF_ERROR(CheckFields(reflection.GetMessage(message, field)));
      continue;
    }
    for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
      RETURN_IF_ERROR(CheckFields(reflection.GetRepeatedMessage(message, field, i)));
    }
  }
  return absl::OkStatus();
}

bool ParseBytes(const grpc::ByteBuffer& bytes, google::protobuf::Message* message) {
  grpc::ByteBuffer copy(bytes);  // shares the slices
  grpc::ProtoBufferReader reader(&copy);
  return reader.status().ok() && message->ParseFromZeroCopyStream(&reader);
}

}  // namespace

absl::Status ParseRequest(const grpc::ByteBuffer& bytes, google::protobuf::Message* message) {
  if (ParseBytes(bytes, message)) return CheckFields(*message);
  // Empty takes any well-formed bytes, as unknown fields.
  google::protobuf::Empty any;
  if (ParseBytes(bytes, &any)) {
    return common::WithReason(absl::InvalidArgumentError(absl::StrCat(
                                  "a string of the ", message->GetTypeName(), " is not UTF-8")),
                              "INVALID_UTF8");
  }
  return common::WithReason(
      absl::InvalidArgumentError(absl::StrCat("the bytes are no ", message->GetTypeName())),
      "MALFORMED");
}

absl::Status CheckKnownFields(const google::protobuf::Message& message) {
  return CheckFields(message);
}

grpc::ByteBuffer SerializeResponse(const google::protobuf::Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace retroinfer
