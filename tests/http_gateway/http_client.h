// A client that sends the bytes it is told to, for tests of HTTP servers.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/shm/unique_fd.h"

namespace retroinfer::test_support {

struct HttpAnswer {
  int status = 0;                              // 0: the connection ended before an answer
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;
};

// One connection to 127.0.0.1. Waits at most a minute for bytes.
class HttpClient {
 public:
  explicit HttpClient(int port, int receive_buffer_bytes = 0)
      : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer_bytes > 0) {
      ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(int));
    }
    const timeval limit{60, 0};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      fd_.Reset();
    }
  }

  bool Send(const std::string& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t size =
          ::send(fd_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (size <= 0) return false;
      sent += static_cast<size_t>(size);
    }
    return true;
  }
  bool Post(const std::string& path, const std::string& body, const std::string& headers = "") {
    return Send(absl::StrCat("POST ", path,
                             " HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n",
                             headers, "Content-Length: ", body.size(), "\r\n\r\n", body));
  }
  bool Get(const std::string& path, const std::string& headers = "") {
    return Send(absl::StrCat("GET ", path, " HTTP/1.1\r\nHost: test\r\n", headers, "\r\n"));
  }

  // Waits for more bytes; returns false at the end.
  bool Receive() {
    char buffer[16384];
    errno = 0;
    const ssize_t size = ::recv(fd_.get(), buffer, sizeof(buffer), 0);
    if (size <= 0) return false;
    input_.append(buffer, static_cast<size_t>(size));
    return true;
  }
  // Waits until `text` has come; returns what came up to its end, or "" at the connection's end.
  std::string ReadUntil(const std::string& text) {
    while (true) {
      const size_t place = input_.find(text);
      if (place != std::string::npos) return Take(place + text.size());
      if (!Receive()) return "";
    }
  }
  // Returns whether the server has closed the connection, waiting for it.
  bool AwaitEnd() {
    while (Receive()) {
    }
    return errno != EAGAIN;
  }

  HttpAnswer ReadHead() {
    HttpAnswer answer;
    const std::string head = ReadUntil("\r\n\r\n");
    if (head.size() < 12) return answer;
    answer.status = std::atoi(head.substr(9, 3).c_str());
    size_t line = head.find("\r\n") + 2;
    while (line + 2 < head.size()) {
      const size_t end = head.find("\r\n", line);
      const size_t colon = head.find(": ", line);
      answer.headers[absl::AsciiStrToLower(head.substr(line, colon - line))] =
          head.substr(colon + 2, end - colon - 2);
      line = end + 2;
    }
    return answer;
  }
  // The next chunk of a chunked body; empty: the last one.
  std::string ReadChunk() {
    const std::string line = ReadUntil("\r\n");
    if (line.empty()) return "";
    const size_t size = std::strtoul(line.c_str(), nullptr, 16);
    while (input_.size() < size + 2 && Receive()) {
    }
    return Take(size + 2).substr(0, size);
  }
  // What comes behind the head of `answer`.
  std::string ReadBody(HttpAnswer& answer) {
    if (answer.headers["transfer-encoding"] == "chunked") {
      std::string body;
      for (std::string chunk = ReadChunk(); !chunk.empty(); chunk = ReadChunk()) body += chunk;
      return body;
    }
    const size_t size = std::strtoul(answer.headers["content-length"].c_str(), nullptr, 10);
    while (input_.size() < size && Receive()) {
    }
    return Take(size);
  }
  HttpAnswer Read() {
    HttpAnswer answer = ReadHead();
    answer.body = ReadBody(answer);
    return answer;
  }

  int fd() const { return fd_.get(); }
  const std::string& input() const { return input_; }  // that has come and is not read

 private:
  std::string Take(size_t bytes) {
    const std::string taken = input_.substr(0, bytes);
    input_.erase(0, bytes);
    return taken;
  }

  common::UniqueFd fd_;
  std::string input_;
};

}  // namespace retroinfer::test_support
