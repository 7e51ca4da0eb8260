#include "common/door/listen_socket.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/http2_client.h"

namespace retroinfer::common {
namespace {

using test_support::Http2Client;

absl::StatusCode CodeOf(const std::string& address) { return Listen(address).status().code(); }

TEST(ListenSocket, AFreePortIsTakenOnce) {
  const auto first = Listen("127.0.0.1:0");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_NE(first->address, "127.0.0.1:0");
  EXPECT_TRUE(Http2Client(first->address, false).connected());
  EXPECT_EQ(CodeOf(first->address), absl::StatusCode::kUnavailable);
  const auto by_name = Listen("localhost:0");
  ASSERT_TRUE(by_name.ok()) << by_name.status();
  EXPECT_TRUE(Http2Client(by_name->address, false).connected());
}

TEST(ListenSocket, BadAddressesAreRefused) {
  for (const char* bad : {"", ":1", "127.0.0.1", "127.0.0.1:", "127.0.0.1:-1", "127.0.0.1:65536",
                          "127.0.0.1:x", "unix:", "unix:relative"}) {
    EXPECT_EQ(CodeOf(bad), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_EQ(CodeOf("unix:/" + std::string(200, 'x')), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(CodeOf("192.0.2.1:0"), absl::StatusCode::kUnavailable);  // not of this machine
}

TEST(ListenSocket, OnlyASocketThatNobodyListensOnIsReplaced) {
  std::string pattern = (std::filesystem::temp_directory_path() / "retroinfer-XXXXXX").string();
  const std::string folder = ::mkdtemp(pattern.data());
  const std::string address = "unix:" + folder + "/a.sock";
  {
    const auto first = Listen(address);
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(CodeOf(address), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(Http2Client(address, false).connected());
  }
  EXPECT_TRUE(Listen(address).ok());  // the file was left behind
  std::ofstream(folder + "/file") << "precious";
  EXPECT_EQ(CodeOf("unix:" + folder + "/file"), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(std::filesystem::is_regular_file(folder + "/file"));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace retroinfer::common
