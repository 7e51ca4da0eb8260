// A page of an HTTP server on this machine.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "common/shm/unique_fd.h"

namespace retroinfer::test_support {

// Returns the whole answer with its header; empty if nobody listens on `port` of 127.0.0.1.
inline std::string HttpGet(int port, const std::string& path) {
  common::UniqueFd socket(::socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    return "";
  }
  const std::string request = "GET " + path + " HTTP/1.0\r\n\r\n";
  if (::write(socket.get(), request.data(), request.size()) < 0) return "";
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = ::read(socket.get(), buffer, sizeof(buffer))) > 0;) {
    answer.append(buffer, static_cast<size_t>(n));
  }
  return answer;
}

}  // namespace retroinfer::test_support
