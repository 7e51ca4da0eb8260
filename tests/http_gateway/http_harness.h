// An HttpServer on a thread of its own, and a handler that does what paths say.
#pragma once

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/log/check.h"
#include "common/status/error_reason.h"
#include "http_gateway/http/http_server.h"

namespace retroinfer::gateway {

//   /echo     answers with the body          /refused   is refused by its head
//   /stream   begins a stream and leaves it  /big       a stream that is written as it is read
//   /silent   a stream that does not begin
class PathHandler final : public RequestHandler {
 public:
  std::atomic<int> gone = 0;     // clients that left a stream
  std::atomic<int> streams = 0;  // that have begun
  std::atomic<size_t> written = 0;

  absl::Status Admit(const HttpRequest& head) override {
    if (head.path != "/refused") return absl::OkStatus();
    return common::WithReason(absl::UnauthenticatedError("no"), "API_KEY_REQUIRED");
  }
  std::shared_ptr<Responder> Handle(HttpRequest request,
                                    const std::shared_ptr<Exchange>& exchange) override {
    if (request.path == "/silent") {
      ++streams;
      return std::make_shared<Stream>(this, exchange, false);
    }
    if (request.path != "/stream" && request.path != "/big") {
      exchange->Respond({.headers = {}, .content_type = "text/plain", .body = request.body});
      return nullptr;
    }
    ++streams;
    exchange->BeginStream("text/plain", {});
    exchange->Write("begun");
    auto stream = std::make_shared<Stream>(this, exchange, request.path == "/big");
    if (stream->big) stream->OnSent();
    return stream;
  }
  HttpResponse Refusal(const absl::Status& status, const std::string& /*path*/) override {
    const std::string reason = common::ReasonOf(status).reason;
    const int code = reason == "API_KEY_REQUIRED"         ? 401
                     : reason == "REQUEST_STALLED"        ? 408
                     : reason == "BODY_TOO_LARGE"         ? 413
                     : reason == "TOO_MANY_REQUEST_BYTES" ? 503
                                                          : 400;
    return {.status = code, .headers = {}, .content_type = "text/plain", .body = reason};
  }
  void OnAnswer(const std::string&, int) override {}

 private:
  struct Stream : public Responder {
    Stream(PathHandler* handler, std::shared_ptr<Exchange> exchange, bool big)
        : handler(handler), exchange(std::move(exchange)), big(big) {}
    void OnSent() override {
      if (!big) return;
      handler->written += 10'000;
      exchange->Write(std::string(10'000, 'x'));
    }
    void OnClientGone() override { ++handler->gone; }
    PathHandler* const handler;
    const std::shared_ptr<Exchange> exchange;
    const bool big;
  };
};

class HttpHarness {
 public:
  explicit HttpHarness(HttpServerOptions options) : work_(boost::asio::make_work_guard(io_)) {
    if (options.addresses.empty()) options.addresses = {"127.0.0.1:0"};
    auto server = HttpServer::Start(options, &handler_, io_);
    RI_CHECK(server.ok());
    server_ = *std::move(server);
    thread_ = std::thread([this] { io_.run(); });
  }
  HttpHarness() : HttpHarness(HttpServerOptions()) {}
  ~HttpHarness() {
    io_.stop();
    thread_.join();
    server_.reset();
  }

  int port() const {
    const std::string& address = server_->addresses().front();
    return std::stoi(address.substr(address.rfind(':') + 1));
  }
  PathHandler& handler() { return handler_; }
  HttpServerStats Stats() {
    HttpServerStats stats;
    Run([&] { stats = server_->stats(); });
    return stats;
  }
  // Runs `action` on the server's thread, and waits for it.
  template <typename Action>
  void Run(Action action) {
    absl::Notification done;
    boost::asio::post(io_, [&] {
      action();
      done.Notify();
    });
    done.WaitForNotification();
  }
  HttpServer& server() { return *server_; }

 private:
  PathHandler handler_;
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

// Waits up to a minute.
template <typename Condition>
bool Await(Condition reached) {
  for (int i = 0; i < 6000; ++i) {
    if (reached()) return true;
    absl::SleepFor(absl::Milliseconds(10));
  }
  return false;
}

}  // namespace retroinfer::gateway
