#include "common/rpc/message_codec.h"

#include <google/protobuf/unknown_field_set.h>
#include <gtest/gtest.h>

#include <string>

#include "common/status/error_reason.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer::common {
namespace {

using generation::v1::GenerateRequest;

grpc::ByteBuffer Bytes(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return grpc::ByteBuffer(&slice, 1);
}

std::string ReasonFor(const std::string& bytes) {
  GenerateRequest request;
  const absl::Status status = ParseRequest(Bytes(bytes), &request);
  if (status.ok()) return "OK";
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return common::ReasonOf(status).reason;
}

TEST(MessageCodec, RoundTrips) {
  GenerateRequest request;
  request.set_text("héllo");
  request.mutable_sampling()->set_temperature(0);
  GenerateRequest parsed;
  ASSERT_TRUE(ParseRequest(SerializeResponse(request), &parsed).ok());
  EXPECT_EQ(parsed.text(), "héllo");
  EXPECT_TRUE(parsed.sampling().has_temperature());
}

TEST(MessageCodec, AnEmptyRequestIsValid) { EXPECT_EQ(ReasonFor(""), "OK"); }

TEST(MessageCodec, RefusesInvalidUtf8) {
  EXPECT_EQ(ReasonFor("\x12\x02\xC3\x28"), "INVALID_UTF8");                  // text
  EXPECT_EQ(ReasonFor("\x22\x06\x0A\x04\x12\x02\xFF\xFE"), "INVALID_UTF8");  // messages
}

TEST(MessageCodec, RefusesBytesThatAreNoMessage) {
  EXPECT_EQ(ReasonFor("\x12\x7F\x41"), "MALFORMED");  // a string of 127 bytes that has 1
  EXPECT_EQ(ReasonFor("\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF"), "MALFORMED");
}

TEST(MessageCodec, RefusesUnknownFieldsAtEveryDepth) {
  GenerateRequest request;
  request.set_text("x");
  request.GetReflection()->MutableUnknownFields(&request)->AddVarint(999, 1);
  EXPECT_EQ(ReasonFor(request.SerializeAsString()), "UNKNOWN_FIELD");

  request.Clear();
  auto* sampling = request.mutable_sampling();
  sampling->GetReflection()->MutableUnknownFields(sampling)->AddVarint(998, 1);
  GenerateRequest parsed;
  const absl::Status status = ParseRequest(Bytes(request.SerializeAsString()), &parsed);
  EXPECT_EQ(common::ReasonOf(status).metadata.at("field"), "998");

  request.Clear();
  auto* message = request.mutable_messages()->add_messages();
  message->GetReflection()->MutableUnknownFields(message)->AddVarint(997, 1);
  EXPECT_EQ(ReasonFor(request.SerializeAsString()), "UNKNOWN_FIELD");
}

// Two bytes on the wire are a message of a hundred in memory: 64 MiB were several GiB.
TEST(MessageCodec, RefusesMoreMessagesThanAnyChatHas) {
  const auto read = [](const google::protobuf::Message& sent) {
    GenerateRequest request;
    const absl::Status status = ParseRequest(SerializeResponse(sent), &request);
    return status.ok() ? "OK" : common::ReasonOf(status).reason;
  };
  GenerateRequest request;
  for (size_t i = 0; i + 1 < kMaxRecords; ++i) request.mutable_messages()->add_messages();
  EXPECT_EQ(read(request), "OK");
  request.mutable_messages()->add_messages();
  EXPECT_EQ(read(request), "REQUEST_TOO_LARGE");

  request.Clear();
  for (size_t i = 0; i < kMaxRecords; ++i) request.mutable_sampling()->add_stop("");
  EXPECT_EQ(read(request), "REQUEST_TOO_LARGE");
  request.Clear();
  google::protobuf::UnknownFieldSet* const unknown =
      request.GetReflection()->MutableUnknownFields(&request);
  for (size_t i = 0; i <= kMaxRecords; ++i) unknown->AddVarint(999, 1);
  EXPECT_EQ(read(request), "REQUEST_TOO_LARGE");
  // Numbers take no more in memory than they do elsewhere.
  request.Clear();
  request.mutable_token_ids()->mutable_ids()->Resize(static_cast<int>(2 * kMaxRecords), 7);
  EXPECT_EQ(read(request), "OK");
}

TEST(MessageCodec, NumbersMayComeOneByOne) {  // as from writers that do not pack them
  std::string bytes;
  for (size_t i = 0; i <= kMaxRecords; ++i) bytes += "\x08\x07";
  generation::v1::TokenIds ids;
  ASSERT_TRUE(ParseRequest(Bytes(bytes), &ids).ok());
  EXPECT_EQ(ids.ids_size(), static_cast<int>(kMaxRecords + 1));
}

TEST(MessageCodec, RefusesGroups) {
  EXPECT_EQ(ReasonFor("\xA3\x06\xA4\x06"), "MALFORMED");  // field 100 begins and ends
}

}  // namespace
}  // namespace retroinfer::common
