#include "common/rpc/message_codec.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"

namespace retroinfer::common {
namespace {

absl::Status CheckFields(const google::protobuf::Message& message) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  const google::protobuf::UnknownFieldSet& unknown = reflection.GetUnknownFields(message);
  if (!unknown.empty()) {
    return WithReason(
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

// Looks at the records of a message without keeping any: two bytes can be a message within it,
// which takes a hundred in memory.
class RecordScan {
 public:
  enum class Result { kFits, kMalformed, kTooMany };

  static Result Of(const grpc::ByteBuffer& bytes, const google::protobuf::Descriptor& type) {
    grpc::ByteBuffer copy(bytes);  // shares the slices
    grpc::ProtoBufferReader reader(&copy);
    if (!reader.status().ok()) return Result::kMalformed;
    google::protobuf::io::CodedInputStream input(&reader);
    RecordScan scan(&input);
    return scan.Message(type) && input.ConsumedEntireMessage() ? Result::kFits : scan.result_;
  }

 private:
  using Input = google::protobuf::io::CodedInputStream;
  using Field = google::protobuf::FieldDescriptor;
  explicit RecordScan(Input* input) : input_(*input) {}

  bool Message(const google::protobuf::Descriptor& type) {
    while (const uint32_t tag = input_.ReadTag()) {
      const Field* const field = type.FindFieldByNumber(static_cast<int>(tag >> 3));
      if (!Record(tag & 7, field)) return false;
    }
    return true;
  }
  bool Record(uint32_t wire_type, const Field* field) {
    const bool is_number = field != nullptr && field->cpp_type() != Field::CPPTYPE_MESSAGE &&
                           field->cpp_type() != Field::CPPTYPE_STRING;
    if ((wire_type == 2 || !is_number) && ++records_ > kMaxRecords) {
      result_ = Result::kTooMany;
      return false;
    }
    uint64_t number;
    uint32_t size;
    switch (wire_type) {
      case 0:
        return input_.ReadVarint64(&number);
      case 1:
        return input_.Skip(8);
      case 2:
        if (!input_.ReadVarint32(&size) || size > INT32_MAX) return false;
        return field != nullptr && field->cpp_type() == Field::CPPTYPE_MESSAGE
                   ? Within(*field->message_type(), static_cast<int>(size))
                   : input_.Skip(static_cast<int>(size));
      case 5:
        return input_.Skip(4);
      default:
        return false;  // groups, which no message here has
    }
  }
  bool Within(const google::protobuf::Descriptor& type, int size) {
    const Input::Limit limit = input_.PushLimit(size);
    if (!input_.IncrementRecursionDepth() || !Message(type) || !input_.ConsumedEntireMessage()) {
      return false;
    }
    input_.DecrementRecursionDepth();
    input_.PopLimit(limit);
    return true;
  }

  Input& input_;
  size_t records_ = 0;
  Result result_ = Result::kMalformed;
};

bool ParseBytes(const grpc::ByteBuffer& bytes, google::protobuf::Message* message) {
  grpc::ByteBuffer copy(bytes);  // shares the slices
  grpc::ProtoBufferReader reader(&copy);
  return reader.status().ok() && message->ParseFromZeroCopyStream(&reader);
}

}  // namespace

absl::Status ParseRequest(const grpc::ByteBuffer& bytes, google::protobuf::Message* message) {
  switch (RecordScan::Of(bytes, *message->GetDescriptor())) {
    case RecordScan::Result::kMalformed:
      return WithReason(
          absl::InvalidArgumentError(absl::StrCat("the bytes are no ", message->GetTypeName())),
          "MALFORMED");
    case RecordScan::Result::kTooMany:
      return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                            "a ", message->GetTypeName(), " of more than ", kMaxRecords,
                            " messages and strings is not read: send less at a time")),
                        "REQUEST_TOO_LARGE");
    case RecordScan::Result::kFits:
      break;
  }
  if (ParseBytes(bytes, message)) return CheckFields(*message);
  return WithReason(absl::InvalidArgumentError(
                        absl::StrCat("a string of the ", message->GetTypeName(), " is not UTF-8")),
                    "INVALID_UTF8");
}

absl::Status CheckKnownFields(const google::protobuf::Message& message) {
  return CheckFields(message);
}

grpc::ByteBuffer SerializeResponse(const google::protobuf::Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace retroinfer::common
