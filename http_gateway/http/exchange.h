// One request and its answer, between a connection and who answers.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "http_gateway/http/http_message.h"

namespace retroinfer::gateway {

// The connection's side. Calls after the end of the answer, or when the client has gone, do
// nothing.
//
// Threads: the io_context's.
class Exchange {
 public:
  virtual ~Exchange() = default;
  // The whole answer.
  virtual void Respond(HttpResponse response) = 0;
  // The head of an answer that comes in pieces, then pieces, then its end.
  virtual void BeginStream(std::string_view content_type, const HttpHeaders& headers) = 0;
  virtual void Write(std::string_view data) = 0;
  virtual void End() = 0;
  // What the client has not taken yet.
  virtual size_t unsent_bytes() const = 0;
};

// The answering side. The connection keeps it until the answer has ended.
class Responder {
 public:
  virtual ~Responder() = default;
  virtual void OnSent() {}        // unsent_bytes() is 0 again
  virtual void OnClientGone() {}  // nothing more can be sent
  // The server ends: the answer is to end now, with this error. One that goes on is cut.
  virtual void OnShutdown(const absl::Status& /*status*/) {}
  virtual void OnTick(absl::Time /*now*/) {}  // about twice a second
};

// What a server does with requests.
class RequestHandler {
 public:
  virtual ~RequestHandler() = default;
  // Called with the head, before the body is read: a status refuses the request.
  virtual absl::Status Admit(const HttpRequest& head) = 0;
  // Called with the whole request. Returns null if the answer has ended already.
  virtual std::shared_ptr<Responder> Handle(HttpRequest request,
                                            const std::shared_ptr<Exchange>& exchange) = 0;
  // The answer to what was refused, or is no request. `path`: empty if there was none.
  virtual HttpResponse Refusal(const absl::Status& status, const std::string& path) = 0;
  // Called when the head of an answer is sent. `path`: empty if there was no request.
  virtual void OnAnswer(const std::string& path, int status) = 0;
};

}  // namespace retroinfer::gateway
