// A gateway over a worker whose engine is a fake, all in the test's process.
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <memory>
#include <string>
#include <thread>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/log/check.h"
#include "common/metrics/metrics.h"
#include "http_gateway/http/http_server.h"
#include "http_gateway/server/gateway.h"
#include "http_gateway/server/gateway_drain.h"
#include "tests/http_gateway/http_client.h"
#include "tests/support/worker_harness.h"

namespace retroinfer::gateway {

class GatewayHarness {
 public:
  struct Settings {
    WorkerHarness::Settings worker;
    GatewayOptions gateway;
    std::string worker_key;      // that the gateway has
    std::string worker_address;  // empty: that of the worker
  };

  explicit GatewayHarness(const Settings& settings)
      : worker_(settings.worker),
        metrics_("http_gateway", "1.2.3", "test", "none"),
        work_(boost::asio::make_work_guard(io_)) {
    WorkerClientOptions options;
    options.address = settings.worker_address.empty() ? worker_.address() : settings.worker_address;
    options.api_key = settings.worker_key;
    auto client = WorkerClient::Create(options, io_);
    RI_CHECK(client.ok());
    client_ = *std::move(client);
    gateway_ = std::make_unique<Gateway>(settings.gateway, *client_, metrics_, io_);
    HttpServerOptions server_options;
    server_options.addresses = {"127.0.0.1:0"};
    auto server = HttpServer::Start(server_options, gateway_.get(), io_);
    RI_CHECK(server.ok());
    server_ = *std::move(server);
    drain_ = std::make_unique<GatewayDrain>(*gateway_, *server_, io_);
    thread_ = std::thread([this] { io_.run(); });
  }
  GatewayHarness() : GatewayHarness(Settings()) {}
  ~GatewayHarness() {
    io_.stop();
    thread_.join();
    drain_.reset();
    server_.reset();
    gateway_.reset();
    client_.reset();
  }

  int port() const {
    const std::string& address = server_->addresses().front();
    return std::stoi(address.substr(address.rfind(':') + 1));
  }
  WorkerHarness& worker() { return worker_; }
  // Waits until /health says so: the worker's watch tells it some time after it serves.
  bool BecomesHealthy() {
    const absl::Time deadline = absl::Now() + absl::Minutes(1);
    while (Get("/health").status != 200) {
      if (absl::Now() > deadline) return false;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return true;
  }
  common::Metrics& metrics() { return metrics_; }
  // As a signal to the program would; returns when that is done.
  void AdvanceDrain(absl::Duration timeout) {
    absl::Notification done;
    boost::asio::post(io_, [&] {
      drain_->Advance(timeout);
      done.Notify();
    });
    done.WaitForNotification();
  }
  bool stopped() const { return io_.stopped(); }
  // Waits up to a minute for the end of the drain.
  bool AwaitStopped() {
    const absl::Time deadline = absl::Now() + absl::Minutes(1);
    while (!io_.stopped() && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(5));
    return io_.stopped();
  }

  // Sends a POST on a connection of its own.
  test_support::HttpAnswer Post(const std::string& path, const std::string& body,
                                const std::string& headers = "") {
    test_support::HttpClient client(port());
    client.Post(path, body, headers);
    return client.Read();
  }
  test_support::HttpAnswer Get(const std::string& path, const std::string& headers = "") {
    test_support::HttpClient client(port());
    client.Get(path, headers);
    return client.Read();
  }

 private:
  WorkerHarness worker_;
  common::Metrics metrics_;
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  std::unique_ptr<WorkerClient> client_;
  std::unique_ptr<Gateway> gateway_;
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<GatewayDrain> drain_;
  std::thread thread_;
};

}  // namespace retroinfer::gateway
