#include "common/door/header_block.h"

#include <gtest/gtest.h>

#include <string>

namespace retroinfer::common {
namespace {

TEST(HeaderBlock, LiteralsOfAnyLengthAreReadBack) {
  HeaderList headers;
  for (const size_t length : {0u, 1u, 126u, 127u, 128u, 254u, 255u, 256u, 16'000u, 20'000u}) {
    headers.emplace_back("name-" + std::to_string(length), std::string(length, 'v'));
  }
  std::string block;
  for (const auto& [name, value] : headers) AppendLiteralHeader(name, value, &block);
  HeaderDecoder decoder;
  HeaderList read;
  bool complete = false;
  ASSERT_TRUE(decoder.Decode(block, 1 << 20, &read, &complete).ok());
  EXPECT_TRUE(complete);
  EXPECT_EQ(read, headers);
  EXPECT_EQ(FindHeader(read, "name-1"), "v");
  EXPECT_EQ(FindHeader(read, "absent"), "");
}

// RFC 7541, C.3: three requests, each of which refers to the ones before.
TEST(HeaderBlock, BlocksReferToEarlierOnes) {
  HeaderDecoder decoder;
  HeaderList read;
  bool complete = false;
  ASSERT_TRUE(decoder
                  .Decode(std::string("\x82\x86\x84\x41\x0f\x77\x77\x77\x2e\x65\x78\x61\x6d\x70\x6c"
                                      "\x65\x2e\x63\x6f\x6d"),
                          1000, &read, &complete)
                  .ok());
  EXPECT_EQ(FindHeader(read, ":authority"), "www.example.com");
  ASSERT_TRUE(decoder
                  .Decode("\x82\x86\x84\xbe\x58\x08\x6e\x6f\x2d\x63\x61\x63\x68\x65", 1000, &read,
                          &complete)
                  .ok());
  EXPECT_EQ(FindHeader(read, ":authority"), "www.example.com");
  EXPECT_EQ(FindHeader(read, "cache-control"), "no-cache");
}

TEST(HeaderBlock, AFewBytesThatStandForManyAreCutOff) {
  HeaderDecoder decoder;
  // One large header that goes into the table, then a thousand references of a byte each.
  std::string block =
      "\x40\x01"
      "a\x7f\xd1\x0f";  // 127 + 2001 bytes of value
  block += std::string(127 + 2001, 'v') + std::string(1000, '\xbe');
  HeaderList read;
  bool complete = true;
  ASSERT_TRUE(decoder.Decode(block, 16'000, &read, &complete).ok());
  EXPECT_FALSE(complete);
  EXPECT_LT(read.size(), 8u);
  ASSERT_TRUE(decoder.Decode("\xbe", 16'000, &read, &complete).ok());  // still in step
  EXPECT_TRUE(complete);
  EXPECT_EQ(FindHeader(read, "a").size(), 127u + 2001);
}

TEST(HeaderBlock, GarbageIsAnError) {
  for (const char* block : {"\xff\xff\xff\xff\xff\xff", "\xbe",
                            "\x40\x05"
                            "ab"}) {
    HeaderDecoder decoder;
    HeaderList read;
    bool complete = false;
    EXPECT_EQ(decoder.Decode(block, 1000, &read, &complete).code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace retroinfer::common
