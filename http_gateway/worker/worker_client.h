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
#include <vector>

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

// What comes of one Generate call, on the io_context's thread.
class GenerateEvents {
 public:
  virtual ~GenerateEvents() = default;
  // The next event; ReadNext() asks for the one after it.
  virtual void OnEvent(generation::v1::GenerateResponse&& event) = 0;
  // The end, exactly once unless the call was cancelled.
  virtual void OnEnd(const absl::Status& status) = 0;
};

class WorkerClient;

// One Generate call.
//
// Threads: the io_context's.
// Owns:    itself, until gRPC is done with it.
class GenerateStream {
 public:
  // Lets the next event come. REQUIRES: the one before has come.
  void ReadNext();
  // Ends the call; `events` hear nothing more and may be gone. A worker that has not begun with the
  // call yet is told when it has: calls that are reset unheard cost their connection its credit
  // (docs/decisions/0020), and all clients share this one.
  void Cancel();

 private:
  friend class WorkerClient;
  GenerateStream(WorkerClient* client, GenerateEvents* events) : client_(client), events_(events) {}
  void OnStarted(bool ok);
  void OnHeaders(bool ok);
  void OnRead(bool ok);
  void OnFinished();
  void Finish();

  WorkerClient* const client_;
  GenerateEvents* events_;  // null: cancelled
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientAsyncReader<generation::v1::GenerateResponse>> reader_;
  generation::v1::GenerateResponse event_;
  grpc::Status status_;
  bool begun_ = false;    // the worker has answered something
  bool waiting_ = false;  // for ReadNext()
};

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

  // `context_name`: for balancers; empty: none. `authorization`: of the one for whom it is; empty:
  // the client's own. Reads the first event at once. The result lives until OnEnd() has been
  // called, or Cancel().
  GenerateStream* Generate(const generation::v1::GenerateRequest& request,
                           const std::string& context_name, const std::string& authorization,
                           GenerateEvents* events);
  // Makes this the client's own, unless it has an API key.
  void UseAuthorization(const std::string& authorization);

  // Calls `method` ("/package.Service/Method"); `done` gets the answer, or why there is none.
  template <typename Request, typename Response>
  void Call(const std::string& method, const Request& request, absl::Duration timeout,
            std::function<void(absl::Status, Response)> done) {
    auto* const call = new UnaryCall<Request, Response>(channel_, std::move(done));
    live_.insert(&call->context);
    Prepare(&call->context, "", authorization_);
    call->context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    call->reader = call->stub.PrepareUnaryCall(&call->context, method, request, &queue_);
    call->reader->StartCall();
    call->reader->Finish(&call->response, &call->status, NewTag([this, call](bool) {
      const std::unique_ptr<UnaryCall<Request, Response>> owned(call);
      live_.erase(&owned->context);
      if (closing_) return;
      owned->done(common::FromGrpcStatus(owned->status), std::move(owned->response));
    }));
  }

 private:
  friend class GenerateStream;
  using Tag = std::function<void(bool ok)>;  // called on the io_context's thread, once

  template <typename Request, typename Response>
  struct UnaryCall {
    UnaryCall(const std::shared_ptr<grpc::Channel>& channel,
              std::function<void(absl::Status, Response)> on_end)
        : stub(channel), done(std::move(on_end)) {}

    grpc::TemplatedGenericStub<Request, Response> stub;
    const std::function<void(absl::Status, Response)> done;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientAsyncResponseReader<Response>> reader;
    Response response;
    grpc::Status status;
  };

  WorkerClient(const WorkerClientOptions& options, boost::asio::io_context& io,
               std::shared_ptr<grpc::Channel> channel);
  void* NewTag(Tag tag) { return new Tag(std::move(tag)); }
  static void Prepare(grpc::ClientContext* context, const std::string& context_name,
                      const std::string& authorization);
  void Run();      // on the queue's thread
  void Deliver();  // on the io_context's thread

  const WorkerClientOptions options_;
  boost::asio::io_context& io_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<generation::v1::GenerationService::Stub> stub_;
  grpc::CompletionQueue queue_;

  // Of the io_context's thread.
  std::string authorization_;  // empty: none
  std::set<grpc::ClientContext*> live_;
  bool closing_ = false;

  absl::Mutex mutex_;
  // What has happened and is not delivered; Deliver() is posted when the first one comes.
  std::vector<std::pair<Tag*, bool>> happened_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::pair<Tag*, bool>> delivering_;  // of the io_context's thread
  std::thread thread_;
};

}  // namespace retroinfer::gateway
