// The gateway's side of the worker's gRPC API: many calls, two threads.
#pragma once

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/rpc/grpc_status.h"
#include "retroinfer/generation/v1/generation.grpc.pb.h"

namespace retroinfer::gateway {

struct WorkerClientOptions {
  std::string address;      // host:port, or unix: and a path
  std::string api_key;      // empty: none
  std::string tls_ca_file;  // turns TLS on; PEM
  std::string tls_certificate_file;
  std::string tls_key_file;
  std::string tls_server_name;  // empty: the host of the address
};

// What comes of one call that streams, on the io_context's thread.
template <typename Response>
class StreamEvents {
 public:
  virtual ~StreamEvents() = default;
  // The next event; ReadNext() asks for the one after it.
  virtual void OnEvent(Response&& event) = 0;
  // The end, exactly once unless the call was cancelled.
  virtual void OnEnd(const absl::Status& status) = 0;
};
using GenerateEvents = StreamEvents<generation::v1::GenerateResponse>;
using ScoreEvents = StreamEvents<generation::v1::ScoreResponse>;

class WorkerClient;

// What gRPC tells when an operation has ended.
class CompletionTag {
 public:
  virtual ~CompletionTag() = default;
  // Called once for each operation, on the io_context's thread.
  virtual void OnCompleted(bool ok) = 0;
};

// One call that streams. One operation at a time is under way.
//
// Threads: the io_context's.
// Owns:    itself, until gRPC is done with it.
template <typename Response>
class WorkerStream final : private CompletionTag {
 public:
  // Lets the next event come. REQUIRES: the one before has come.
  void ReadNext();
  // Ends the call; `events` hear nothing more and may be gone. A worker that has not begun with the
  // call yet is told when it has: calls that are reset unheard cost their connection its credit
  // (docs/decisions/0020), and all clients share this one.
  void Cancel();

 private:
  friend class WorkerClient;
  WorkerStream(WorkerClient* client, StreamEvents<Response>* events)
      : client_(client), events_(events) {}
  // The operation that is under way, if any.
  enum class Step { kStart, kHeaders, kRead, kFinish };

  void OnCompleted(bool ok) override;
  void OnStarted(bool ok);
  void OnHeaders(bool ok);
  void OnRead(bool ok);
  void OnFinished();
  void Read();
  void Finish();
  void* Tag() { return static_cast<CompletionTag*>(this); }

  WorkerClient* const client_;
  Step step_ = Step::kStart;
  StreamEvents<Response>* events_;  // null: cancelled
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientAsyncReader<Response>> reader_;
  Response event_;
  grpc::Status status_;
  bool begun_ = false;    // the worker has answered something
  bool waiting_ = false;  // for ReadNext()
};
using GenerateStream = WorkerStream<generation::v1::GenerateResponse>;
using ScoreStream = WorkerStream<generation::v1::ScoreResponse>;

// The io_context's thread takes from gRPC's completion queue itself as long as anything comes, and
// reads the worker's bytes doing so; while nothing does, a thread of its own waits there. So a
// token costs no wake-up while others come, however many streams there are.
//
// Threads: methods on the io_context's thread; callbacks come there, too.
// Owns:    a channel, a completion queue and the thread that waits for it.
class WorkerClient {
 public:
  // Does not connect yet.
  //
  // Returns: what is wrong with the files of TLS.
  // REQUIRES: `io` runs on one thread, and outlives this.
  static absl::StatusOr<std::unique_ptr<WorkerClient>> Create(const WorkerClientOptions& options,
                                                              boost::asio::io_context& io);
  // Gives up what is still running, without callbacks, and waits until gRPC is done with it.
  // REQUIRES: `io` does not run any more.
  ~WorkerClient();
  WorkerClient(const WorkerClient&) = delete;
  WorkerClient& operator=(const WorkerClient&) = delete;

  // `context_name`: for balancers; empty: made of the prompt's beginning. `authorization`: the
  // header of whom the call is for; empty: this client's own key. Reads the first event at once.
  // The result lives until OnEnd() has been called, or Cancel().
  GenerateStream* Generate(const generation::v1::GenerateRequest& request,
                           const std::string& context_name, const std::string& authorization,
                           GenerateEvents* events);
  ScoreStream* Score(const generation::v1::ScoreRequest& request, const std::string& context_name,
                     const std::string& authorization, ScoreEvents* events);
  // Makes this header that of the calls that are for nobody in particular, unless the options have
  // an API key.
  void UseAuthorization(const std::string& authorization);

  // Calls `method` ("/package.Service/Method"); `done` gets the answer, or why there is none.
  template <typename Request, typename Response>
  void Call(const std::string& method, const Request& request, absl::Duration timeout,
            std::function<void(absl::Status, Response)> done) {
    auto* const call = new UnaryCall<Request, Response>(this, std::move(done));
    live_.insert(&call->context);
    Prepare(&call->context, "", authorization_);
    call->context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    call->reader = call->stub.PrepareUnaryCall(&call->context, method, request, &queue_);
    call->reader->StartCall();
    call->reader->Finish(&call->response, &call->status, static_cast<CompletionTag*>(call));
  }

 private:
  template <typename Response>
  friend class WorkerStream;

  template <typename Request, typename Response>
  struct UnaryCall final : public CompletionTag {
    UnaryCall(WorkerClient* owner, std::function<void(absl::Status, Response)> on_end)
        : client(owner), stub(owner->channel_), done(std::move(on_end)) {}
    void OnCompleted(bool /*ok*/) override {
      const std::unique_ptr<UnaryCall> owned(this);
      client->live_.erase(&context);
      if (client->closing_) return;
      done(common::FromGrpcStatus(status), std::move(response));
    }

    WorkerClient* const client;
    grpc::TemplatedGenericStub<Request, Response> stub;
    const std::function<void(absl::Status, Response)> done;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> reader;
    Response response;
    grpc::Status status;
  };

  WorkerClient(const WorkerClientOptions& options, boost::asio::io_context& io,
               std::shared_ptr<grpc::Channel> channel);
  // Without a `context_name` balancers choose as they like.
  static void Prepare(grpc::ClientContext* context, const std::string& context_name,
                      const std::string& authorization);
  template <typename Response>
  WorkerStream<Response>* NewStream(const std::string& context_name,
                                    const std::string& authorization,
                                    StreamEvents<Response>* events);
  void Run();      // on the thread that waits
  void Deliver();  // on the io_context's thread
  // Takes from the queue what is there; returns whether that was anything.
  bool TakeNext();

  const WorkerClientOptions options_;
  boost::asio::io_context& io_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<generation::v1::GenerationService::Stub> stub_;
  grpc::CompletionQueue queue_;

  // Of the io_context's thread.
  std::string authorization_;  // empty: none
  std::set<grpc::ClientContext*> live_;
  bool closing_ = false;

  // What was taken from the queue and is not delivered yet; of the thread whose turn it is.
  CompletionTag* next_ = nullptr;
  bool next_ok_ = false;
  absl::Mutex mutex_;
  bool delivering_ ABSL_GUARDED_BY(mutex_) = false;  // it is the io_context's thread's turn
  std::thread thread_;
};

}  // namespace retroinfer::gateway
