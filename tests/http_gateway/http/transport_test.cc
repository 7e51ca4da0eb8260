#include "http_gateway/http/transport.h"

#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "tests/http_gateway/http_client.h"
#include "tests/http_gateway/http_harness.h"
#include "tests/support/certificates.h"

namespace retroinfer::gateway {
namespace {

// TLS on top of a plain client's socket.
class TlsClient {
 public:
  explicit TlsClient(int port, const std::string& protocol = "http/1.1") : plain_(port) {
    context_ = SSL_CTX_new(TLS_client_method());
    ssl_ = SSL_new(context_);
    const std::string alpn = static_cast<char>(protocol.size()) + protocol;
    SSL_set_alpn_protos(ssl_, reinterpret_cast<const unsigned char*>(alpn.data()),
                        static_cast<unsigned>(alpn.size()));
    SSL_set_fd(ssl_, plain_.fd());
    connected_ = SSL_connect(ssl_) == 1;
  }
  ~TlsClient() {
    SSL_free(ssl_);
    SSL_CTX_free(context_);
  }
  bool connected() const { return connected_; }
  std::string Protocol() const {
    const unsigned char* name = nullptr;
    unsigned size = 0;
    SSL_get0_alpn_selected(ssl_, &name, &size);
    return {reinterpret_cast<const char*>(name), size};
  }
  // Sends, and reads until `end`, or until the connection's end.
  std::string Ask(const std::string& request, const std::string& end) {
    SSL_write(ssl_, request.data(), static_cast<int>(request.size()));
    std::string answer;
    char buffer[4096];
    while (end.empty() || answer.find(end) == std::string::npos) {
      const int size = SSL_read(ssl_, buffer, sizeof(buffer));
      if (size <= 0) break;
      answer.append(buffer, static_cast<size_t>(size));
    }
    return answer;
  }
  // Whether the server said that it has ended, rather than just went.
  bool SawEnd() const { return (SSL_get_shutdown(ssl_) & SSL_RECEIVED_SHUTDOWN) != 0; }

 private:
  test_support::HttpClient plain_;
  SSL_CTX* context_;
  SSL* ssl_;
  bool connected_ = false;
};

class TransportTest : public ::testing::Test {
 protected:
  TransportTest() {
    std::string pattern = (std::filesystem::temp_directory_path() / "retroinfer-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    options_.tls.certificate = folder_ + "/certificate.pem";
    options_.tls.key = folder_ + "/key.pem";
    WriteCertificate(options_.tls.certificate, options_.tls.key);
  }
  ~TransportTest() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
  HttpServerOptions options_;
};

TEST_F(TransportTest, SpeaksTls) {
  HttpHarness harness(options_);
  TlsClient client(harness.port());
  ASSERT_TRUE(client.connected());
  EXPECT_EQ(client.Protocol(), "http/1.1");
  const std::string body(100'000, 'b');
  const std::string request = absl::StrCat(
      "POST /echo HTTP/1.1\r\nHost: h\r\nContent-Length: ", body.size(), "\r\n\r\n", body, "");
  EXPECT_NE(client.Ask(request, body).find("200 OK"), std::string::npos);
  EXPECT_NE(
      client.Ask("GET /echo HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", "").find("200 OK"),
      std::string::npos);
  EXPECT_TRUE(client.SawEnd());
}

TEST_F(TransportTest, AClientThatKnowsHttp2AloneMayStillTry) {
  HttpHarness harness(options_);
  TlsClient client(harness.port(), "h2");
  EXPECT_TRUE(client.connected());
  EXPECT_EQ(client.Protocol(), "");
}

TEST_F(TransportTest, PlainBytesAreNoHandshake) {
  HttpHarness harness(options_);
  test_support::HttpClient client(harness.port());
  client.Get("/echo");
  EXPECT_TRUE(client.AwaitEnd());
  EXPECT_TRUE(TlsClient(harness.port()).connected());
}

TEST_F(TransportTest, ClientsNeedACertificateWhereThatIsAsked) {
  options_.tls.client_ca = options_.tls.certificate;
  HttpHarness harness(options_);
  TlsClient client(harness.port());
  EXPECT_EQ(client.Ask("GET /echo HTTP/1.1\r\nHost: h\r\n\r\n", "\r\n\r\n"), "");
}

TEST_F(TransportTest, NewCertificatesAreForNewConnections) {
  HttpHarness harness(options_);
  TlsClient before(harness.port());
  WriteCertificate(options_.tls.certificate, options_.tls.key);
  harness.Run([&] { harness.server().ReloadCertificates(); });
  TlsClient after(harness.port());
  EXPECT_NE(before.Ask("GET /echo HTTP/1.1\r\nHost: h\r\n\r\n", "\r\n\r\n"), "");
  EXPECT_NE(after.Ask("GET /echo HTTP/1.1\r\nHost: h\r\n\r\n", "\r\n\r\n"), "");
}

TEST_F(TransportTest, AClientThatLeavesAStreamIsNoticed) {
  HttpHarness harness(options_);
  {
    TlsClient client(harness.port());
    EXPECT_NE(client.Ask("GET /stream HTTP/1.1\r\nHost: h\r\n\r\n", "begun"), "");
  }
  EXPECT_TRUE(Await([&] { return harness.handler().gone == 1; }));
}

}  // namespace
}  // namespace retroinfer::gateway
