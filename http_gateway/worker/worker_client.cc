#include "http_gateway/worker/worker_client.h"

#include <grpc/grpc.h>

#include <boost/asio/post.hpp>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

constexpr int kMessageBytesMax = 64 << 20;
// What balancers hash (deploy/fleet).
constexpr char kContextAffinityKey[] = "x-retroinfer-context";

absl::StatusOr<std::string> ReadPem(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  if (!(text << file.rdbuf())) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  return text.str();
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeCredentials(
    const WorkerClientOptions& options) {
  const bool has_certificate = !options.tls_certificate_file.empty();
  if (has_certificate != !options.tls_key_file.empty() ||
      (has_certificate && options.tls_ca_file.empty())) {
    return absl::InvalidArgumentError(
        "--worker-tls-certificate and --worker-tls-key need each other, and --worker-tls-ca");
  }
  if (options.tls_ca_file.empty()) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions ssl;
  ASSIGN_OR_RETURN(ssl.pem_root_certs, ReadPem(options.tls_ca_file));
  if (has_certificate) {
    ASSIGN_OR_RETURN(ssl.pem_cert_chain, ReadPem(options.tls_certificate_file));
    ASSIGN_OR_RETURN(ssl.pem_private_key, ReadPem(options.tls_key_file));
  }
  return grpc::SslCredentials(ssl);
}

grpc::ChannelArguments ChannelArgumentsOf(const WorkerClientOptions& options) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMessageBytesMax);
  arguments.SetMaxSendMessageSize(kMessageBytesMax);
  // A prefill may take minutes without a byte on the wire.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
  // A worker that was restarted is found again soon.
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1'000);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (!options.tls_server_name.empty()) {
    arguments.SetSslTargetNameOverride(options.tls_server_name);
  }
  return arguments;
}

}  // namespace

void GenerateStream::OnStarted(bool ok) {
  if (!ok) return Finish();
  reader_->ReadInitialMetadata(client_->NewTag([this](bool read) { OnHeaders(read); }));
}

void GenerateStream::OnHeaders(bool ok) {
  begun_ = true;
  if (!ok) return Finish();
  if (events_ == nullptr) context_.TryCancel();
  reader_->Read(&event_, client_->NewTag([this](bool read) { OnRead(read); }));
}

void GenerateStream::OnRead(bool ok) {
  if (!ok || events_ == nullptr) return Finish();
  waiting_ = true;
  events_->OnEvent(std::move(event_));  // may call ReadNext() or Cancel()
}

void GenerateStream::ReadNext() {
  waiting_ = false;
  event_.Clear();
  reader_->Read(&event_, client_->NewTag([this](bool read) { OnRead(read); }));
}

void GenerateStream::Cancel() {
  events_ = nullptr;
  if (begun_) context_.TryCancel();
  if (waiting_) Finish();
}

void GenerateStream::Finish() {
  waiting_ = false;
  reader_->Finish(&status_, client_->NewTag([this](bool) { OnFinished(); }));
}

void GenerateStream::OnFinished() {
  const std::unique_ptr<GenerateStream> owned(this);
  client_->live_.erase(&context_);
  if (events_ == nullptr || client_->closing_) return;
  events_->OnEnd(common::FromGrpcStatus(status_));
}

WorkerClient::WorkerClient(const WorkerClientOptions& options, boost::asio::io_context& io,
                           std::shared_ptr<grpc::Channel> channel)
    : options_(options),
      io_(io),
      channel_(std::move(channel)),
      stub_(v1::GenerationService::NewStub(channel_)),
      authorization_(options.api_key.empty() ? "" : absl::StrCat("Bearer ", options.api_key)),
      thread_([this] { Run(); }) {}

absl::StatusOr<std::unique_ptr<WorkerClient>> WorkerClient::Create(
    const WorkerClientOptions& options, boost::asio::io_context& io) {
  // Kept to the process's end: the library's own end waits up to 10 s for a thread that polls.
  static const bool kept = (grpc_init(), true);
  (void)kept;
  ASSIGN_OR_RETURN(const auto credentials, MakeCredentials(options));
  return std::unique_ptr<WorkerClient>(new WorkerClient(
      options, io,
      grpc::CreateCustomChannel(options.address, credentials, ChannelArgumentsOf(options))));
}

WorkerClient::~WorkerClient() {
  closing_ = true;
  for (grpc::ClientContext* const context : live_) context->TryCancel();
  while (!live_.empty()) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(
          +[](std::vector<std::pair<Tag*, bool>>* list) { return !list->empty(); }, &happened_));
    }
    Deliver();
  }
  queue_.Shutdown();
  thread_.join();
}

void WorkerClient::UseAuthorization(const std::string& authorization) {
  if (options_.api_key.empty()) authorization_ = authorization;
}

void WorkerClient::Prepare(grpc::ClientContext* context, const std::string& context_name,
                           const std::string& authorization) {
  if (!authorization.empty()) context->AddMetadata("authorization", authorization);
  if (!context_name.empty()) context->AddMetadata(kContextAffinityKey, context_name);
}

GenerateStream* WorkerClient::Generate(const v1::GenerateRequest& request,
                                       const std::string& context_name,
                                       const std::string& authorization, GenerateEvents* events) {
  auto* const stream = new GenerateStream(this, events);
  live_.insert(&stream->context_);
  Prepare(&stream->context_, context_name, authorization.empty() ? authorization_ : authorization);
  stream->reader_ = stub_->PrepareAsyncGenerate(&stream->context_, request, &queue_);
  stream->reader_->StartCall(NewTag([stream](bool ok) { stream->OnStarted(ok); }));
  return stream;
}

void WorkerClient::Run() {
  void* tag = nullptr;
  bool ok = false;
  while (queue_.Next(&tag, &ok)) {
    bool first = false;
    {
      absl::MutexLock lock(&mutex_);
      first = happened_.empty();
      happened_.emplace_back(static_cast<Tag*>(tag), ok);
    }
    if (first) boost::asio::post(io_, [this] { Deliver(); });
  }
}

void WorkerClient::Deliver() {
  {
    absl::MutexLock lock(&mutex_);
    delivering_.swap(happened_);
  }
  for (const auto& [tag, ok] : delivering_) {
    const std::unique_ptr<Tag> owned(tag);
    (*owned)(ok);
  }
  delivering_.clear();
}

}  // namespace retroinfer::gateway
