// A client that speaks raw HTTP/2 frames, for what no gRPC client would do.
#pragma once

#include <openssl/ssl.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/shm/unique_fd.h"

struct nghttp2_hd_deflater;

namespace retroinfer::test_support {

// One connection. Frames are gathered until Flush(), so that many go out in one write.
//
// Threads: one at a time.
class Http2Client {
 public:
  using Headers = std::vector<std::pair<std::string, std::string>>;
  enum FrameType : uint8_t {
    kData = 0,
    kHeaders = 1,
    kPriority = 2,
    kRstStream = 3,
    kSettings = 4,
    kPing = 6,
    kGoAway = 7,
    kWindowUpdate = 8,
    kContinuation = 9,
  };
  static constexpr uint8_t kEndStream = 1;
  static constexpr uint8_t kEndHeaders = 4;

  // `address`: "unix:/path" or "127.0.0.1:port". With `tls` any certificate is trusted.
  Http2Client(const std::string& address, bool tls);
  ~Http2Client();
  Http2Client(const Http2Client&) = delete;
  Http2Client& operator=(const Http2Client&) = delete;

  // False once the server has closed the connection, or was never there.
  bool connected() const { return connected_; }

  // Queues the preface and empty settings, with which every connection begins.
  void Begin();
  // Queues the headers of a gRPC call. Returns the stream.
  uint32_t OpenCall(const std::string& path, const Headers& extra = {}, bool end_stream = false);
  // Queues one gRPC message.
  void SendMessage(uint32_t stream, std::string_view message, bool end_stream = true);
  void Reset(uint32_t stream);
  // Queues any frame; its length field is that of the payload.
  void Frame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload);
  // Queues bytes as they are.
  void Raw(std::string_view bytes) { out_.append(bytes); }

  // Writes what is queued, and reads what the server sends meanwhile if `reads` (a server that
  // nobody reads stops reading at last). Returns false if the connection has ended, or did not take
  // everything before `timeout`.
  bool Flush(bool reads = true, absl::Duration timeout = absl::Seconds(30));
  // Reads until `done()` holds, the connection has ended, or `timeout`. Returns whether it holds.
  template <typename Done>
  bool ReadUntil(Done done, absl::Duration timeout = absl::Seconds(30)) {
    const absl::Time deadline = absl::Now() + timeout;
    while (!done()) {
      if (!connected_ || absl::Now() >= deadline) return false;
      Poll(false, absl::Milliseconds(20));
      ReadSome();
    }
    return true;
  }

  // Ends the connection without a word.
  void Disconnect();

  // Frames that have come in whole, by type.
  uint64_t frames(FrameType type) const { return received_[type]; }
  // Streams that the server has ended.
  uint64_t ended_streams() const { return ended_streams_; }
  // Payloads of all HEADERS frames, as they came.
  const std::string& header_blocks() const { return header_blocks_; }

 private:
  bool Handshake();
  void Poll(bool for_writing, absl::Duration timeout);
  void ReadSome();
  void CountFrames();
  // Bytes moved; 0: not now; -1: the end.
  int Write(const char* data, size_t size);
  int Read(char* data, size_t size);

  common::UniqueFd socket_;
  bool connected_ = false;
  SSL_CTX* tls_context_ = nullptr;
  SSL* tls_ = nullptr;
  nghttp2_hd_deflater* deflater_ = nullptr;
  uint32_t next_stream_ = 1;
  std::string out_;
  std::string in_;
  uint64_t received_[256] = {};
  uint64_t ended_streams_ = 0;
  std::string header_blocks_;
};

}  // namespace retroinfer::test_support
