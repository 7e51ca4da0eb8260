#include "http_gateway/worker/worker_client.h"

#include <grpc/grpc.h>

#include <boost/asio/post.hpp>

#include "absl/strings/str_cat.h"
#include "common/files/regular_file.h"
#include "common/rpc/context_affinity.h"
#include "common/status/status_macros.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

constexpr int kMessageBytesMax = 64 << 20;
constexpr size_t kPemBytesMax = 1 << 20;
// Events in a row before the io_context does other work: what they made others write is sent then.
constexpr int kEventsATurn = 64;

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
  ASSIGN_OR_RETURN(ssl.pem_root_certs, common::ReadNamedFile(options.tls_ca_file, kPemBytesMax));
  if (has_certificate) {
    ASSIGN_OR_RETURN(ssl.pem_cert_chain,
                     common::ReadNamedFile(options.tls_certificate_file, kPemBytesMax));
    ASSIGN_OR_RETURN(ssl.pem_private_key,
                     common::ReadNamedFile(options.tls_key_file, kPemBytesMax));
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

template <typename Response>
void WorkerStream<Response>::OnCompleted(bool ok) {
  switch (step_) {
    case Step::kStart:
      return OnStarted(ok);
    case Step::kHeaders:
      return OnHeaders(ok);
    case Step::kRead:
      return OnRead(ok);
    case Step::kFinish:
      return OnFinished();
  }
}

template <typename Response>
void WorkerStream<Response>::OnStarted(bool ok) {
  if (!ok) return Finish();
  step_ = Step::kHeaders;
  reader_->ReadInitialMetadata(Tag());
}

template <typename Response>
void WorkerStream<Response>::OnHeaders(bool ok) {
  begun_ = true;
  if (!ok) return Finish();
  if (events_ == nullptr) context_.TryCancel();
  Read();
}

template <typename Response>
void WorkerStream<Response>::Read() {
  step_ = Step::kRead;
  reader_->Read(&event_, Tag());
}

template <typename Response>
void WorkerStream<Response>::OnRead(bool ok) {
  if (!ok || events_ == nullptr || client_->closing_) return Finish();
  waiting_ = true;
  events_->OnEvent(std::move(event_));  // may call ReadNext() or Cancel()
}

template <typename Response>
void WorkerStream<Response>::ReadNext() {
  waiting_ = false;
  event_.Clear();
  Read();
}

template <typename Response>
void WorkerStream<Response>::Cancel() {
  events_ = nullptr;
  if (begun_) context_.TryCancel();
  if (waiting_) Finish();
}

template <typename Response>
void WorkerStream<Response>::Finish() {
  waiting_ = false;
  step_ = Step::kFinish;
  reader_->Finish(&status_, Tag());
}

template <typename Response>
void WorkerStream<Response>::OnFinished() {
  const std::unique_ptr<WorkerStream> owned(this);
  client_->live_.erase(&context_);
  if (events_ == nullptr || client_->closing_) return;
  events_->OnEnd(common::FromGrpcStatus(status_));
}

template class WorkerStream<v1::GenerateResponse>;
template class WorkerStream<v1::ScoreResponse>;

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
      mutex_.Await(absl::Condition(&delivering_));
    }
    Deliver();
  }
  {
    absl::MutexLock lock(&mutex_);
    delivering_ = false;  // a turn that was posted does not come any more
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
  if (!context_name.empty()) context->AddMetadata(common::kContextAffinityKey, context_name);
}

template <typename Response>
WorkerStream<Response>* WorkerClient::NewStream(const std::string& context_name,
                                                const std::string& authorization,
                                                StreamEvents<Response>* events) {
  auto* const stream = new WorkerStream<Response>(this, events);
  live_.insert(&stream->context_);
  Prepare(&stream->context_, context_name, authorization.empty() ? authorization_ : authorization);
  return stream;
}

GenerateStream* WorkerClient::Generate(const v1::GenerateRequest& request,
                                       const std::string& context_name,
                                       const std::string& authorization, GenerateEvents* events) {
  GenerateStream* const stream =
      NewStream(context_name.empty() ? common::ContextAffinity(request) : context_name,
                authorization, events);
  stream->reader_ = stub_->PrepareAsyncGenerate(&stream->context_, request, &queue_);
  stream->reader_->StartCall(stream->Tag());
  return stream;
}

ScoreStream* WorkerClient::Score(const v1::ScoreRequest& request, const std::string& context_name,
                                 const std::string& authorization, ScoreEvents* events) {
  ScoreStream* const stream =
      NewStream(context_name.empty() ? common::ContextAffinity(request) : context_name,
                authorization, events);
  stream->reader_ = stub_->PrepareAsyncScore(&stream->context_, request, &queue_);
  stream->reader_->StartCall(stream->Tag());
  return stream;
}

void WorkerClient::Run() {
  void* tag = nullptr;
  while (queue_.Next(&tag, &next_ok_)) {
    next_ = static_cast<CompletionTag*>(tag);
    {
      absl::MutexLock lock(&mutex_);
      delivering_ = true;
    }
    boost::asio::post(io_, [this] { Deliver(); });
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(
        +[](bool* delivering) { return !*delivering; }, &delivering_));
  }
}

bool WorkerClient::TakeNext() {
  void* tag = nullptr;
  const gpr_timespec now = gpr_inf_past(GPR_CLOCK_MONOTONIC);
  if (queue_.AsyncNext(&tag, &next_ok_, now) != grpc::CompletionQueue::GOT_EVENT) return false;
  next_ = static_cast<CompletionTag*>(tag);
  return true;
}

// What the events of a turn make connections write is sent before the next turn, and more events
// may have come by then. So the queue is only left to the other thread when a turn has found
// nothing.
void WorkerClient::Deliver() {
  int delivered = 0;
  while (next_ != nullptr || TakeNext()) {
    if (delivered == kEventsATurn) break;
    ++delivered;
    std::exchange(next_, nullptr)->OnCompleted(next_ok_);
  }
  if (delivered > 0) return boost::asio::post(io_, [this] { Deliver(); });
  absl::MutexLock lock(&mutex_);
  delivering_ = false;
}

}  // namespace retroinfer::gateway
