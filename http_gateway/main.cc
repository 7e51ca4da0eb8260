// http_gateway: serves OpenAI's HTTP API for a gpu_worker.
#include <signal.h>
#include <spdlog/spdlog.h>

#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/build_info/build_info.h"
#include "common/door/tls_certificates.h"
#include "common/log/log_metrics.h"
#include "common/log/process_log.h"
#include "common/metrics/metrics.h"
#include "common/process/descriptor_limit.h"
#include "common/process/exit_status.h"
#include "common/process/standard_streams.h"
#include "common/process/thread_limit.h"
#include "common/service/service_notifier.h"
#include "http_gateway/server/gateway_drain.h"
#include "http_gateway/server/gateway_settings.h"

namespace retroinfer::gateway {
namespace {

int Fail(const absl::Status& status) {
  spdlog::critical("{}", std::string(status.message()));
  return common::ExitStatusOf(status);
}

// Shows what the server counts, at each scrape, and tells the service manager that the loop goes
// round: without it nothing is answered.
//
// The server's numbers belong to the io_context's thread: they are copied there, twice a second.
class Heartbeat {
 public:
  Heartbeat(common::Metrics& metrics, const HttpServer& server,
            const common::ServiceNotifier& notifier, boost::asio::io_context& io)
      : server_(server),
        notifier_(notifier),
        timer_(io),
        connections_(metrics.Gauge("gateway_connections", "Connections of HTTP clients")),
        accepted_(metrics.Counter("gateway_connections_accepted_total", "Connections accepted")),
        refused_(metrics.Counter("gateway_connections_refused_total",
                                 "Connections closed because there were too many")),
        slow_(metrics.Counter("gateway_slow_clients_total",
                              "Connections closed because the client did not read")),
        stalled_(metrics.Counter("gateway_stalled_requests_total",
                                 "Requests given up because their rest did not come")) {
    if (server.stats().certificate_expires < absl::InfiniteFuture()) {
      const common::Metrics::Labels labels = {{"service", "http_gateway"}};
      certificate_expiry_ = &metrics.Gauge("certificate_expiry_timestamp_seconds",
                                           "When the certificate in use expires", labels);
      certificate_failures_ = &metrics.Counter(
          "certificate_reload_failures_total",
          "Changed certificates that were not taken because they were bad", labels);
    }
    Update();
  }

 private:
  void Update() {
    const HttpServerStats stats = server_.stats();
    connections_.Set(static_cast<double>(stats.connections));
    Raise(accepted_, stats.connections_accepted);
    Raise(refused_, stats.connections_refused);
    Raise(slow_, stats.slow_clients);
    Raise(stalled_, stats.stalled_requests);
    if (certificate_expiry_ != nullptr) {
      certificate_expiry_->Set(static_cast<double>(absl::ToUnixSeconds(stats.certificate_expires)));
      Raise(*certificate_failures_, stats.certificate_reloads_failed);
    }
    notifier_.Feed();
    timer_.expires_after(std::chrono::milliseconds(500));
    timer_.async_wait([this](const boost::system::error_code& stopped) {
      if (!stopped) Update();
    });
  }
  static void Raise(prometheus::Counter& counter, uint64_t value) {
    counter.Increment(static_cast<double>(value) - counter.Value());
  }

  const HttpServer& server_;
  const common::ServiceNotifier& notifier_;
  boost::asio::steady_timer timer_;
  prometheus::Gauge& connections_;
  prometheus::Counter& accepted_;
  prometheus::Counter& refused_;
  prometheus::Counter& slow_;
  prometheus::Counter& stalled_;
  prometheus::Gauge* certificate_expiry_ = nullptr;  // null: no TLS
  prometheus::Counter* certificate_failures_ = nullptr;
};

// Takes signals until the process may end.
class SignalWatch {
 public:
  SignalWatch(boost::asio::io_context& io, Gateway& gateway, HttpServer& server,
              const GatewaySettings& settings, const common::ServiceNotifier& notifier)
      : server_(server),
        settings_(settings),
        notifier_(notifier),
        signals_(io, SIGTERM, SIGINT, SIGHUP),
        drain_(gateway, server, io) {
    Wait();
  }

 private:
  void Wait() {
    signals_.async_wait([this](const boost::system::error_code& error, int signal) {
      if (error) return;
      if (signal == SIGHUP) {
        spdlog::info("SIGHUP: opening the log and reading certificates and tenants again");
        common::ReopenProcessLog();
        server_.ReloadCertificates();
        if (const absl::Status status = settings_.gateway.keys->Reload(); !status.ok()) {
          spdlog::error("the tenants stay as they were: {}", status.ToString());
        }
      } else {
        spdlog::info("stopping on signal {}", signal);
        notifier_.Stopping("draining");
        notifier_.Progress("draining", settings_.drain_timeout + absl::Seconds(5));
        drain_.Advance(settings_.drain_timeout);
      }
      Wait();
    });
  }

  HttpServer& server_;
  const GatewaySettings& settings_;
  const common::ServiceNotifier& notifier_;
  boost::asio::signal_set signals_;
  GatewayDrain drain_;
};

int CheckSettings(const GatewaySettings& settings) {
  const absl::Status status = common::TlsCertificates::Check(settings.server.tls);
  if (status.ok()) return EXIT_SUCCESS;
  std::cerr << "http_gateway: " << status.message() << "\n";
  return common::ExitStatusOf(status);
}

int Run(int argc, char** argv) {
  GatewaySettings settings;
  const absl::StatusOr<bool> run = ParseGatewaySettings(argc, argv, &settings);
  if (!run.ok()) {
    std::cerr << "http_gateway: " << run.status().message() << "\n";
    return common::kExitRefusesSettings;
  }
  if (!*run) return EXIT_SUCCESS;
  if (settings.checks_only) return CheckSettings(settings);
  if (const absl::Status status = common::StartProcessLog("http_gateway", settings.log);
      !status.ok()) {
    std::cerr << "http_gateway: " << status.message() << "\n";
    return common::kExitRefusesSettings;
  }
  const common::ServiceNotifier notifier = common::ServiceNotifier::FromEnvironment();
  for (const std::string& warning : settings.warnings) spdlog::warn("{}", warning);
  common::Metrics metrics("http_gateway", common::kBuildVersion, common::kBuildRevision, "none");
  metrics.SetRestarts(settings.restarts);
  common::AddLogMetrics(&metrics, "http_gateway");
  if (!settings.metrics_address.empty()) {
    const absl::StatusOr<int> port = metrics.Serve(settings.metrics_address);
    if (!port.ok()) return Fail(port.status());
    spdlog::info("metrics on port {}", *port);
  }
  boost::asio::io_context io(1);
  auto worker = WorkerClient::Create(settings.worker, io);
  if (!worker.ok()) return Fail(worker.status());
  Gateway gateway(settings.gateway, **worker, metrics, io);
  auto server = HttpServer::Start(settings.server, &gateway, io);
  if (!server.ok()) return Fail(server.status());
  const Heartbeat heartbeat(metrics, **server, notifier, io);
  const SignalWatch signals(io, gateway, **server, settings, notifier);
  const std::string serving = absl::StrCat("serving ", settings.worker.address, " on ",
                                           absl::StrJoin((*server)->addresses(), ", "));
  spdlog::info("{}", serving);
  notifier.Ready(serving);
  io.run();
  server->reset();
  spdlog::info("stopped");
  return EXIT_SUCCESS;
}

}  // namespace
}  // namespace retroinfer::gateway

int main(int argc, char** argv) {
  retroinfer::common::OpenStandardStreams();
  if (!retroinfer::common::RaiseDescriptorLimitOf("http_gateway")) return 1;
  if (!retroinfer::common::ThreadsCanBeHad("http_gateway")) return 1;
  return retroinfer::gateway::Run(argc, argv);
}
