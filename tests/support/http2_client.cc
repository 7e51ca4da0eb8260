#include "tests/support/http2_client.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "common/log/check.h"

namespace retroinfer::test_support {
namespace {

constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
constexpr size_t kFrameHeaderBytes = 9;

common::UniqueFd Connect(const std::string& address) {
  sockaddr_storage storage{};
  socklen_t size = 0;
  std::string_view rest = address;
  if (rest.substr(0, 5) == "unix:") {
    auto* const unix_address = reinterpret_cast<sockaddr_un*>(&storage);
    unix_address->sun_family = AF_UNIX;
    std::strncpy(unix_address->sun_path, address.c_str() + 5, sizeof(unix_address->sun_path) - 1);
    size = sizeof(sockaddr_un);
  } else {
    auto* const tcp = reinterpret_cast<sockaddr_in*>(&storage);
    tcp->sin_family = AF_INET;
    tcp->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    tcp->sin_port =
        htons(static_cast<uint16_t>(std::atoi(address.substr(address.rfind(':') + 1).c_str())));
    size = sizeof(sockaddr_in);
  }
  common::UniqueFd fd(::socket(storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&storage), size) != 0) return {};
  ::fcntl(fd.get(), F_SETFL, O_NONBLOCK);
  return fd;
}

std::string BigEndian32(uint32_t value) {
  const uint32_t swapped = htonl(value);
  return std::string(reinterpret_cast<const char*>(&swapped), 4);
}

}  // namespace

Http2Client::Http2Client(const std::string& address, bool tls) : socket_(Connect(address)) {
  ::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes without MSG_NOSIGNAL
  RI_CHECK(nghttp2_hd_deflate_new(&deflater_, 4096) == 0);
  connected_ = socket_.valid();
  if (!connected_ || !tls) return;
  tls_context_ = SSL_CTX_new(TLS_client_method());
  SSL_CTX_set_verify(tls_context_, SSL_VERIFY_NONE, nullptr);
  tls_ = SSL_new(tls_context_);
  static constexpr unsigned char kProtocol[] = {2, 'h', '2'};
  SSL_set_alpn_protos(tls_, kProtocol, sizeof(kProtocol));
  SSL_set_fd(tls_, socket_.get());
  connected_ = Handshake();
}

Http2Client::~Http2Client() {
  nghttp2_hd_deflate_del(deflater_);
  SSL_free(tls_);
  SSL_CTX_free(tls_context_);
}

bool Http2Client::Handshake() {
  const absl::Time deadline = absl::Now() + absl::Seconds(30);
  for (;;) {
    const int result = SSL_connect(tls_);
    if (result == 1) return true;
    const int error = SSL_get_error(tls_, result);
    if (absl::Now() > deadline || (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE)) {
      return false;
    }
    Poll(error == SSL_ERROR_WANT_WRITE, absl::Seconds(1));
  }
}

void Http2Client::Begin() {
  out_.append(kPreface);
  Frame(kSettings, 0, 0, "");
}

uint32_t Http2Client::OpenCall(const std::string& path, const Headers& extra, bool end_stream) {
  Headers headers = {{":method", "POST"}, {":scheme", "http"},
                     {":path", path},     {":authority", "localhost"},
                     {"te", "trailers"},  {"content-type", "application/grpc"}};
  headers.insert(headers.end(), extra.begin(), extra.end());
  std::vector<nghttp2_nv> list;
  for (auto& [name, value] : headers) {
    list.push_back({reinterpret_cast<uint8_t*>(name.data()),
                    reinterpret_cast<uint8_t*>(value.data()), name.size(), value.size(), 0});
  }
  std::string block(nghttp2_hd_deflate_bound(deflater_, list.data(), list.size()), '\0');
  const ssize_t bytes = nghttp2_hd_deflate_hd(deflater_, reinterpret_cast<uint8_t*>(block.data()),
                                              block.size(), list.data(), list.size());
  RI_CHECK(bytes >= 0);
  block.resize(static_cast<size_t>(bytes));
  const uint32_t stream = next_stream_;
  next_stream_ += 2;
  constexpr size_t kFrameMax = 16384;
  for (size_t at = 0; at == 0 || at < block.size(); at += kFrameMax) {
    const bool last = at + kFrameMax >= block.size();
    const uint8_t end = at == 0 && end_stream ? kEndStream : 0;
    Frame(at == 0 ? kHeaders : kContinuation, end | (last ? kEndHeaders : 0), stream,
          std::string_view(block).substr(at, kFrameMax));
  }
  return stream;
}

void Http2Client::SendMessage(uint32_t stream, std::string_view message, bool end_stream) {
  const std::string prefix =
      std::string(1, '\0') + BigEndian32(static_cast<uint32_t>(message.size()));
  Frame(kData, end_stream ? kEndStream : 0, stream, prefix + std::string(message));
}

void Http2Client::Reset(uint32_t stream) {
  constexpr uint32_t kCancel = 8;
  Frame(kRstStream, 0, stream, BigEndian32(kCancel));
}

void Http2Client::Frame(uint8_t type, uint8_t flags, uint32_t stream, std::string_view payload) {
  const std::string length = BigEndian32(static_cast<uint32_t>(payload.size()));
  out_.append(length, 1, 3);
  out_.push_back(static_cast<char>(type));
  out_.push_back(static_cast<char>(flags));
  out_.append(BigEndian32(stream));
  out_.append(payload);
}

void Http2Client::Poll(bool for_writing, absl::Duration timeout) {
  pollfd entry{socket_.get(), static_cast<short>(POLLIN | (for_writing ? POLLOUT : 0)), 0};
  ::poll(&entry, 1, static_cast<int>(absl::ToInt64Milliseconds(timeout)));
}

int Http2Client::Write(const char* data, size_t size) {
  if (tls_ == nullptr) {
    const ssize_t bytes = ::send(socket_.get(), data, size, MSG_NOSIGNAL);
    if (bytes >= 0) return static_cast<int>(bytes);
    return errno == EAGAIN ? 0 : -1;
  }
  const int bytes = SSL_write(tls_, data, static_cast<int>(std::min<size_t>(size, 16384)));
  if (bytes > 0) return bytes;
  const int error = SSL_get_error(tls_, bytes);
  return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? 0 : -1;
}

int Http2Client::Read(char* data, size_t size) {
  if (tls_ == nullptr) {
    const ssize_t bytes = ::recv(socket_.get(), data, size, 0);
    if (bytes > 0) return static_cast<int>(bytes);
    return bytes < 0 && errno == EAGAIN ? 0 : -1;
  }
  const int bytes = SSL_read(tls_, data, static_cast<int>(size));
  if (bytes > 0) return bytes;
  const int error = SSL_get_error(tls_, bytes);
  return error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE ? 0 : -1;
}

void Http2Client::ReadSome() {
  char buffer[16384];
  int bytes = 0;
  while ((bytes = Read(buffer, sizeof(buffer))) > 0) {
    in_.append(buffer, static_cast<size_t>(bytes));
    CountFrames();
  }
  if (bytes < 0) connected_ = false;
}

void Http2Client::CountFrames() {
  size_t at = 0;
  while (in_.size() - at >= kFrameHeaderBytes) {
    const auto byte = [&](size_t i) { return static_cast<uint8_t>(in_[at + i]); };
    const size_t length = (size_t{byte(0)} << 16) | (size_t{byte(1)} << 8) | byte(2);
    if (in_.size() - at < kFrameHeaderBytes + length) break;
    const uint8_t type = byte(3);
    const bool may_end = type == kData || type == kHeaders;
    ++received_[type];
    if (type == kRstStream || (may_end && (byte(4) & kEndStream) != 0)) ++ended_streams_;
    if (type == kHeaders) header_blocks_.append(in_, at + kFrameHeaderBytes, length);
    at += kFrameHeaderBytes + length;
  }
  in_.erase(0, at);
}

void Http2Client::Disconnect() {
  ::shutdown(socket_.get(), SHUT_RDWR);
  connected_ = false;
}

bool Http2Client::Flush(bool reads, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  size_t at = 0;
  while (connected_ && at < out_.size()) {
    const int bytes = Write(out_.data() + at, out_.size() - at);
    if (bytes < 0) connected_ = false;
    if (bytes > 0) at += static_cast<size_t>(bytes);
    if (reads) ReadSome();
    if (bytes != 0) continue;
    if (absl::Now() >= deadline) break;
    Poll(true, absl::Milliseconds(100));
  }
  const bool all = at == out_.size();
  out_.erase(0, at);
  return connected_ && all;
}

}  // namespace retroinfer::test_support
