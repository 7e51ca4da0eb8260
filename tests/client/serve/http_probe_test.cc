#include "client/serve/http_probe.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <thread>

#include "common/door/listen_socket.h"

namespace retroinfer::client {
namespace {

// Listens in a folder of its own and answers each connection with `answer`.
class HttpProbeTest : public ::testing::Test {
 protected:
  HttpProbeTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "retroinfer-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
  }
  ~HttpProbeTest() override { std::filesystem::remove_all(folder_); }
  std::string Address() const { return "unix:" + folder_ + "/http.sock"; }

  bool Probe(const std::string& answer) {
    auto listener = common::Listen(Address());
    EXPECT_TRUE(listener.ok());
    std::thread server([&] {
      int fd = -1;
      while ((fd = ::accept(listener->sockets[0].get(), nullptr, nullptr)) < 0) ::usleep(1000);
      char request[512];
      EXPECT_GT(::recv(fd, request, sizeof(request), 0), 0);
      EXPECT_EQ(::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(answer.size()));
      ::close(fd);
    });
    const bool answers = AnswersHttp(Address(), absl::Seconds(60));
    server.join();
    return answers;
  }

  std::string folder_;
};

TEST_F(HttpProbeTest, AnyAnswerOfHttpCounts) {
  EXPECT_TRUE(Probe("HTTP/1.1 200 OK\r\n\r\n"));
  EXPECT_TRUE(Probe("HTTP/1.1 503 Service Unavailable\r\n\r\n"));
  EXPECT_FALSE(Probe("220 mail.example\r\n"));
  EXPECT_FALSE(Probe(""));
}

TEST_F(HttpProbeTest, NobodyIsNoAnswer) {
  EXPECT_FALSE(AnswersHttp(Address(), absl::Seconds(60)));
  auto silent = common::Listen(Address());
  ASSERT_TRUE(silent.ok());
  EXPECT_FALSE(AnswersHttp(Address(), absl::Milliseconds(50)));
}

}  // namespace
}  // namespace retroinfer::client
