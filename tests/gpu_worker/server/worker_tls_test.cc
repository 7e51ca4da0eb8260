#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "common/metrics/metrics.h"
#include "gpu_worker/server/worker_server.h"
#include "retroinfer/generation/v1/generation.grpc.pb.h"
#include "tests/support/certificates.h"

namespace retroinfer {
namespace {

namespace v1 = generation::v1;

class WorkerTlsTest : public ::testing::Test {
 protected:
  WorkerTlsTest() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "retroinfer-tls-XXXXXX").string();
    folder_ = ::mkdtemp(pattern.data());
    WriteCertificate(Path("server.pem"), Path("server.key"));
    WriteCertificate(Path("client.pem"), Path("client.key"));
    options_.addresses = {"localhost:0"};
  }
  ~WorkerTlsTest() override { std::filesystem::remove_all(folder_); }

  std::string Path(const std::string& name) const { return folder_ + "/" + name; }

  // The status of a call with these credentials; NOT_READY's UNAVAILABLE has the server's message.
  std::string Call(const WorkerServer& server,
                   const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
    const auto stub =
        v1::GenerationService::NewStub(grpc::CreateChannel(server.addresses()[0], credentials));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
    v1::GetModelInfoResponse info;
    return stub->GetModelInfo(&context, {}, &info).error_message();
  }
  std::shared_ptr<grpc::ChannelCredentials> ClientCredentials(bool with_certificate) const {
    grpc::SslCredentialsOptions ssl;
    ssl.pem_root_certs = ReadText(Path("server.pem"));
    if (with_certificate) {
      ssl.pem_cert_chain = ReadText(Path("client.pem"));
      ssl.pem_private_key = ReadText(Path("client.key"));
    }
    return grpc::SslCredentials(ssl);
  }

  static constexpr char kReached[] = "the model is still loading";
  std::string folder_;
  common::Metrics metrics_{"gpu_worker", "1", "r", "cpu"};
  ServerOptions options_;
};

TEST_F(WorkerTlsTest, TlsServesClientsThatTrustIt) {
  options_.tls_certificate_file = Path("server.pem");
  options_.tls_key_file = Path("server.key");
  const auto server = WorkerServer::Start(options_, metrics_);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(Call(**server, ClientCredentials(false)), kReached);
  EXPECT_NE(Call(**server, grpc::InsecureChannelCredentials()), kReached);
}

TEST_F(WorkerTlsTest, MutualTlsNeedsAClientCertificate) {
  options_.tls_certificate_file = Path("server.pem");
  options_.tls_key_file = Path("server.key");
  options_.tls_client_ca_file = Path("client.pem");
  const auto server = WorkerServer::Start(options_, metrics_);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(Call(**server, ClientCredentials(true)), kReached);
  EXPECT_NE(Call(**server, ClientCredentials(false)), kReached);
}

TEST_F(WorkerTlsTest, IncompleteSettingsAreRefused) {
  options_.tls_certificate_file = Path("server.pem");
  EXPECT_EQ(WorkerServer::Start(options_, metrics_).status().code(),
            absl::StatusCode::kInvalidArgument);
  options_.tls_key_file = Path("absent.key");
  EXPECT_EQ(WorkerServer::Start(options_, metrics_).status().code(), absl::StatusCode::kNotFound);
  options_.tls_certificate_file = options_.tls_key_file = "";
  options_.tls_client_ca_file = Path("client.pem");
  EXPECT_EQ(WorkerServer::Start(options_, metrics_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace retroinfer
