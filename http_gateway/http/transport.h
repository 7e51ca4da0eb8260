// A socket, in plain text or with TLS.
#pragma once

#include <openssl/ssl.h>

#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <functional>
#include <memory>
#include <string_view>

namespace retroinfer::gateway {

using Socket = boost::asio::generic::stream_protocol::socket;

// One read and one write at a time. A callback that is called after Close() gets an error.
//
// Threads: the io_context's.
// Owns:    the socket; operations keep this alive.
class Transport : public std::enable_shared_from_this<Transport> {
 public:
  using Done = std::function<void(const boost::system::error_code& error, size_t bytes)>;

  static std::shared_ptr<Transport> Plain(Socket socket);
  // `context` is kept as long as it is needed.
  static std::shared_ptr<Transport> Tls(Socket socket, SSL_CTX* context);

  virtual ~Transport() = default;
  virtual void Handshake(Done done) = 0;
  virtual void ReadSome(char* data, size_t size, Done done) = 0;
  virtual void WriteSome(std::string_view data, Done done) = 0;
  // Sends what the kernel takes at once, without a callback. Returns how many bytes: 0 if there is
  // no room, or if this transport has no such way; WriteSome() waits then. Sets `error` if the
  // connection is of no further use.
  //
  // REQUIRES: no write is in progress.
  virtual size_t TryWrite(std::string_view data, boost::system::error_code* error) = 0;
  // The client sees the end of what was written; what it sends can still be read.
  virtual void EndWriting() = 0;
  virtual void Close() = 0;
};

}  // namespace retroinfer::gateway
