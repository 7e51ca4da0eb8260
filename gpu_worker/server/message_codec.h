// Requests from bytes and responses to bytes.
//
// The handlers take raw bytes because gRPC answers a request that it cannot parse with
// UNIMPLEMENTED, and a string that is not UTF-8 is such a request. Here it gets INVALID_ARGUMENT.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/status.h"

namespace retroinfer {

// Parses `bytes` into `*message`.
//
// Returns: INVALID_ARGUMENT with reason MALFORMED, INVALID_UTF8 or UNKNOWN_FIELD (with the message
//          type and the field's number).
absl::Status ParseRequest(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);

// Returns INVALID_ARGUMENT with reason UNKNOWN_FIELD if a message that was parsed already has one.
absl::Status CheckKnownFields(const google::protobuf::Message& message);

grpc::ByteBuffer SerializeResponse(const google::protobuf::Message& message);

}  // namespace retroinfer
