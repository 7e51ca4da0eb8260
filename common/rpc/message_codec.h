// Requests from bytes and responses to bytes.
//
// The handlers take raw bytes because gRPC answers a request that it cannot parse with
// UNIMPLEMENTED, and a string that is not UTF-8 is such a request. Here it gets INVALID_ARGUMENT.
#pragma once

#include <google/protobuf/message.h>
#include <grpcpp/support/byte_buffer.h>

#include <cstddef>

#include "absl/status/status.h"

namespace retroinfer::common {

// Messages, strings, bytes and unknown fields that a request may have: no chat needs as many, and
// what they take in memory is many times what they take on the wire.
inline constexpr size_t kMaxRecords = size_t{1} << 18;

// Parses `bytes` into `*message`, which takes at most a hundred bytes or so for each of kMaxRecords
// beside a few times the size of `bytes`.
//
// Returns: INVALID_ARGUMENT with reason MALFORMED, INVALID_UTF8 or UNKNOWN_FIELD (with the message
//          type and the field's number); RESOURCE_EXHAUSTED with reason REQUEST_TOO_LARGE.
absl::Status ParseRequest(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);

// Returns INVALID_ARGUMENT with reason UNKNOWN_FIELD if a message that was parsed already has one.
absl::Status CheckKnownFields(const google::protobuf::Message& message);

grpc::ByteBuffer SerializeResponse(const google::protobuf::Message& message);

}  // namespace retroinfer::common
