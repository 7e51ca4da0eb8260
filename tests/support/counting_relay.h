// A relay between two unix sockets that counts what goes towards the server.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "common/shm/unique_fd.h"

namespace retroinfer {

// Threads: one. Owns: its socket, a thread for it and one for each connection.
class CountingRelay {
 public:
  CountingRelay(const std::string& path, std::string server_path)
      : path_(path), server_path_(std::move(server_path)), listener_(Socket()) {
    const sockaddr_un address = AddressOf(path);
    if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) !=
            0 ||
        ::listen(listener_.get(), 8) != 0) {
      throw std::runtime_error("no relay at " + path);
    }
    acceptor_ = std::thread([this] { Accept(); });
  }
  ~CountingRelay() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    acceptor_.join();
    for (const common::UniqueFd& fd : fds_) ::shutdown(fd.get(), SHUT_RDWR);
    for (std::thread& thread : threads_) thread.join();
    ::unlink(path_.c_str());
  }
  CountingRelay(const CountingRelay&) = delete;
  CountingRelay& operator=(const CountingRelay&) = delete;

  uint64_t bytes_to_server() const { return bytes_; }

 private:
  static common::UniqueFd Socket() {
    return common::UniqueFd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  }
  static sockaddr_un AddressOf(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    return address;
  }
  void Accept() {
    while (true) {
      common::UniqueFd client(::accept(listener_.get(), nullptr, nullptr));
      if (!client.valid()) return;
      common::UniqueFd server = Socket();
      const sockaddr_un address = AddressOf(server_path_);
      if (::connect(server.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) !=
          0) {
        continue;
      }
      threads_.emplace_back([this, from = client.get(), to = server.get()] { Carry(from, to); });
      fds_.push_back(std::move(client));
      fds_.push_back(std::move(server));
    }
  }
  void Carry(int client, int server) {
    std::vector<char> buffer(1 << 16);
    while (true) {
      std::array<pollfd, 2> polled = {pollfd{client, POLLIN, 0}, pollfd{server, POLLIN, 0}};
      if (::poll(polled.data(), polled.size(), -1) < 0) return;
      for (size_t i = 0; i < 2; ++i) {
        if (polled[i].revents == 0) continue;
        const ssize_t count = ::read(polled[i].fd, buffer.data(), buffer.size());
        if (count <= 0) {
          ::shutdown(client, SHUT_RDWR);
          ::shutdown(server, SHUT_RDWR);
          return;
        }
        if (i == 0) bytes_ += static_cast<uint64_t>(count);
        const int to = i == 0 ? server : client;
        for (ssize_t at = 0; at < count;) {
          const ssize_t written = ::send(to, buffer.data() + at, count - at, MSG_NOSIGNAL);
          if (written <= 0) return;
          at += written;
        }
      }
    }
  }

  const std::string path_;
  const std::string server_path_;
  const common::UniqueFd listener_;
  std::atomic<uint64_t> bytes_{0};
  // Of acceptor_ until it has ended.
  std::vector<common::UniqueFd> fds_;
  std::vector<std::thread> threads_;
  std::thread acceptor_;
};

}  // namespace retroinfer
