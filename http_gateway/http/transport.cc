#include "http_gateway/http/transport.h"

#include <sys/socket.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <cerrno>
#include <utility>

namespace retroinfer::gateway {
namespace {

namespace asio = boost::asio;
using Error = boost::system::error_code;

class PlainTransport final : public Transport {
 public:
  explicit PlainTransport(Socket socket) : socket_(std::move(socket)) {}

  void Handshake(Done done) override {
    asio::post(socket_.get_executor(),
               [self = shared_from_this(), done = std::move(done)] { done({}, 0); });
  }
  void ReadSome(char* data, size_t size, Done done) override {
    socket_.async_read_some(asio::buffer(data, size), Kept(std::move(done)));
  }
  void WriteSome(std::string_view data, Done done) override {
    socket_.async_write_some(asio::buffer(data.data(), data.size()), Kept(std::move(done)));
  }
  size_t TryWrite(std::string_view data, Error* error) override {
    const ssize_t bytes =
        ::send(socket_.native_handle(), data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (bytes >= 0) return static_cast<size_t>(bytes);
    if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      error->assign(errno, boost::system::system_category());
    }
    return 0;
  }
  void EndWriting() override {
    Error ignored;
    socket_.shutdown(Socket::shutdown_send, ignored);
  }
  void Close() override {
    Error ignored;
    socket_.close(ignored);
  }

 private:
  Done Kept(Done done) {
    return [self = shared_from_this(), done = std::move(done)](const Error& error, size_t bytes) {
      done(error, bytes);
    };
  }

  Socket socket_;
};

class TlsTransport final : public Transport {
 public:
  TlsTransport(Socket socket, SSL_CTX* context)
      : context_(Shared(context)), stream_(std::move(socket), context_) {}

  void Handshake(Done done) override {
    stream_.async_handshake(asio::ssl::stream_base::server,
                            [self = shared_from_this(),
                             done = std::move(done)](const Error& error) { done(error, 0); });
  }
  void ReadSome(char* data, size_t size, Done done) override {
    stream_.async_read_some(asio::buffer(data, size), Kept(std::move(done)));
  }
  void WriteSome(std::string_view data, Done done) override {
    stream_.async_write_some(asio::buffer(data.data(), data.size()), Kept(std::move(done)));
  }
  // The rest of a record that the kernel took half of must follow: only asio's stream keeps it.
  size_t TryWrite(std::string_view /*data*/, Error* /*error*/) override { return 0; }
  void EndWriting() override {
    stream_.async_shutdown([self = shared_from_this()](const Error&) {});
  }
  void Close() override {
    Error ignored;
    stream_.next_layer().close(ignored);
  }

 private:
  Done Kept(Done done) {
    return [self = shared_from_this(), done = std::move(done)](const Error& error, size_t bytes) {
      done(error, bytes);
    };
  }

  static SSL_CTX* Shared(SSL_CTX* context) {
    SSL_CTX_up_ref(context);
    return context;
  }

  asio::ssl::context context_;
  asio::ssl::stream<Socket> stream_;
};

}  // namespace

std::shared_ptr<Transport> Transport::Plain(Socket socket) {
  return std::make_shared<PlainTransport>(std::move(socket));
}

std::shared_ptr<Transport> Transport::Tls(Socket socket, SSL_CTX* context) {
  return std::make_shared<TlsTransport>(std::move(socket), context);
}

}  // namespace retroinfer::gateway
