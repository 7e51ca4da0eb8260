// Messages over a stream socket: 8 bytes of length, then the bytes.
#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace retroinfer::test_support {

// Threads: one that sends and one that receives.
// Owns:    the descriptor.
class MessageSocket {
 public:
  static constexpr uint64_t kMaxBytes = uint64_t{64} << 20;

  explicit MessageSocket(int descriptor) : descriptor_(descriptor) {}
  ~MessageSocket() { ::close(descriptor_); }
  MessageSocket(const MessageSocket&) = delete;
  MessageSocket& operator=(const MessageSocket&) = delete;

  // Returns false if the other side is gone.
  bool Send(std::string_view message) {
    const uint64_t size = message.size();
    return Write({reinterpret_cast<const char*>(&size), sizeof(size)}) && Write(message);
  }
  // Returns nothing if the other side is gone, or sends no such message.
  std::optional<std::string> Receive() {
    uint64_t size = 0;
    if (!Read(reinterpret_cast<char*>(&size), sizeof(size)) || size > kMaxBytes) {
      return std::nullopt;
    }
    std::string message(size, '\0');
    if (!Read(message.data(), size)) return std::nullopt;
    return message;
  }
  // The other side receives no more.
  void EndSending() { ::shutdown(descriptor_, SHUT_WR); }

 private:
  bool Write(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t count = ::send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (count <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(count));
    }
    return true;
  }
  bool Read(char* bytes, size_t size) {
    while (size > 0) {
      const ssize_t count = ::recv(descriptor_, bytes, size, 0);
      if (count <= 0) return false;
      bytes += count;
      size -= static_cast<size_t>(count);
    }
    return true;
  }

  const int descriptor_;
};

}  // namespace retroinfer::test_support
