#include "client/command/connection.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/files/named_stream.h"
#include "common/rpc/context_affinity.h"
#include "common/rpc/grpc_status.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"

namespace retroinfer::client {
namespace {

constexpr int kMessageBytesMax = 64 << 20;
constexpr char kGroup[] = "Connection";

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(
    const ConnectionOptions& options) {
  if (options.tls_ca_file.empty()) {
    if (options.tls_certificate_file.empty() && options.tls_key_file.empty()) {
      return grpc::InsecureChannelCredentials();
    }
    return absl::InvalidArgumentError("--tls-certificate and --tls-key need --tls-ca");
  }
  if (options.tls_certificate_file.empty() != options.tls_key_file.empty()) {
    return absl::InvalidArgumentError("--tls-certificate and --tls-key need each other");
  }
  grpc::SslCredentialsOptions ssl;
  ASSIGN_OR_RETURN(ssl.pem_root_certs, ReadWholeFile(options.tls_ca_file));
  if (!options.tls_key_file.empty()) {
    ASSIGN_OR_RETURN(ssl.pem_cert_chain, ReadWholeFile(options.tls_certificate_file));
    ASSIGN_OR_RETURN(ssl.pem_private_key, ReadWholeFile(options.tls_key_file));
  }
  return grpc::SslCredentials(ssl);
}

grpc::ChannelArguments Arguments() {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  arguments.SetMaxSendMessageSize(kMessageBytesMax);
  // A prefill may take minutes without a byte on the wire.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  return arguments;
}

constexpr size_t kFileBytesMax = size_t{64} << 20;

}  // namespace

absl::StatusOr<std::string> ReadWholeFile(const std::string& path) {
  ASSIGN_OR_RETURN(common::NamedInput file, common::NamedInput::Open(path));
  std::string text;
  char buffer[1 << 16];
  while (true) {
    ASSIGN_OR_RETURN(const size_t size, file.Read(buffer, sizeof(buffer)));
    if (size == 0) return text;
    text.append(buffer, size);
    if (text.size() > kFileBytesMax) {
      return absl::ResourceExhaustedError(
          absl::StrCat(path, " has more than ", kFileBytesMax >> 20, " MiB: divide it"));
    }
  }
}

void AddConnectionOptions(common::Settings* settings, ConnectionOptions* options) {
  CLI::App& app = settings->app();
  app.add_option("--address", options->address, "The worker: host:port, or unix: and a path")
      ->group(kGroup);
  app.add_option("--api-key-file", options->api_key_file, "File with the server's API key")
      ->group(kGroup);
  AddTlsOptions(settings, options);
}

void AddContextAffinityOption(common::Settings* settings, ConnectionOptions* options) {
  settings->app()
      .add_option("--context-affinity", options->context_affinity,
                  "Name of what this is about, by which a balancer chooses the node. Default: a "
                  "hash of the first 16 KiB of the prompt")
      ->group(kGroup);
}

void AddFleetOptions(common::Settings* settings, ConnectionOptions* options) {
  AddContextAffinityOption(settings, options);
  settings->app()
      .add_option("--retries", options->retries,
                  "Times to ask again where a server is unavailable before it has answered "
                  "anything")
      ->check(CLI::Range(0, 10))
      ->group(kGroup);
}

void AddTlsOptions(common::Settings* settings, ConnectionOptions* options) {
  CLI::App& app = settings->app();
  app.add_option("--tls-ca", options->tls_ca_file,
                 "PEM file with the CA of the server's certificate; turns TLS on")
      ->group(kGroup);
  // Servers have options of these names for certificates of their own.
  settings->NameVariable("--tls-certificate", "RETROINFER_CLIENT_TLS_CERTIFICATE");
  settings->NameVariable("--tls-key", "RETROINFER_CLIENT_TLS_KEY");
  app.add_option("--tls-certificate", options->tls_certificate_file,
                 "PEM file with a client certificate, for mutual TLS")
      ->group(kGroup);
  app.add_option("--tls-key", options->tls_key_file, "PEM file with its key")->group(kGroup);
  app.add_option("--tls-server-name", options->tls_server_name,
                 "Name that the server's certificate must have, where that is not the host of "
                 "--address")
      ->group(kGroup);
}

absl::StatusOr<std::shared_ptr<grpc::Channel>> OpenChannel(const ConnectionOptions& options,
                                                           grpc::ChannelArguments arguments) {
  ASSIGN_OR_RETURN(const auto credentials, MakeCredentials(options));
  if (!options.tls_server_name.empty()) {
    arguments.SetSslTargetNameOverride(options.tls_server_name);
  }
  return grpc::CreateCustomChannel(options.address, credentials, arguments);
}

Connection::Connection(const ConnectionOptions& options, std::string api_key,
                       std::shared_ptr<grpc::Channel> channel)
    : address_(options.address),
      context_affinity_(options.context_affinity),
      retries_(options.retries),
      api_key_(std::move(api_key)),
      channel_(std::move(channel)),
      stub_(generation::v1::GenerationService::NewStub(channel_)),
      contexts_(generation::v1::ContextService::NewStub(channel_)) {}

absl::StatusOr<std::unique_ptr<Connection>> Connection::Open(const ConnectionOptions& options) {
  if (!options.context_affinity.empty()) {
    RETURN_IF_ERROR(common::CheckContextAffinity(options.context_affinity));
  }
  ASSIGN_OR_RETURN(auto channel, OpenChannel(options, Arguments()));
  std::string api_key;
  if (!options.api_key_file.empty()) {
    ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(options.api_key_file));
    api_key = std::string(absl::StripAsciiWhitespace(text));
    if (api_key.empty()) {
      return absl::InvalidArgumentError(absl::StrCat(options.api_key_file, " holds no API key"));
    }
  }
  return std::unique_ptr<Connection>(
      new Connection(options, std::move(api_key), std::move(channel)));
}

void Connection::Prepare(grpc::ClientContext* context, const std::string& affinity) const {
  if (!api_key_.empty()) context->AddMetadata("authorization", absl::StrCat("Bearer ", api_key_));
  const std::string& name = context_affinity_.empty() ? affinity : context_affinity_;
  if (!name.empty()) context->AddMetadata(common::kContextAffinityKey, name);
}

bool Connection::IsReachable() const {
  return channel_->GetState(/*try_to_connect=*/false) != GRPC_CHANNEL_TRANSIENT_FAILURE;
}

std::string Connection::Explain(const grpc::Status& status) const {
  const common::ErrorReason reason = common::ReasonOf(common::FromGrpcStatus(status));
  const std::string& message = status.error_message();
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE && reason.reason.empty()) {
    return absl::StrCat("no worker answers at ", address_, " (", message,
                        "): start one with 'retroinfer serve', or name another with --address");
  }
  if (status.error_code() == grpc::StatusCode::UNAUTHENTICATED) {
    return absl::StrCat(message, " (--api-key-file)");
  }
  const std::string code =
      absl::StatusCodeToString(static_cast<absl::StatusCode>(status.error_code()));
  return reason.reason.empty() || reason.reason == code
             ? absl::StrCat(message, " [", code, "]")
             : absl::StrCat(message, " [", code, " ", reason.reason, "]");
}

}  // namespace retroinfer::client
