#include "common/metrics/metrics.h"

#include <prometheus/collectable.h>
#include <prometheus/text_serializer.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/metrics/metrics_server.h"
#include "common/metrics/process_metrics.h"

namespace retroinfer::common {
namespace {

constexpr char kPrefix[] = "retroinfer_";

}  // namespace

class Metrics::Source : public prometheus::Collectable {
 public:
  explicit Source(std::shared_ptr<prometheus::Registry> registry)
      : registry_(std::move(registry)), process_(*registry_) {}

  std::vector<prometheus::MetricFamily> Collect() const override {
    absl::MutexLock lock(&mutex_);
    process_.Update();
    for (const auto& [id, update] : updates_) update();
    return registry_->Collect();
  }

  int Add(std::function<void()> update) {
    absl::MutexLock lock(&mutex_);
    updates_.emplace(++last_id_, std::move(update));
    return last_id_;
  }

  void Remove(int id) {
    absl::MutexLock lock(&mutex_);
    updates_.erase(id);
  }

 private:
  const std::shared_ptr<prometheus::Registry> registry_;
  mutable absl::Mutex mutex_;  // also held while updates run
  mutable ProcessMetrics process_ ABSL_GUARDED_BY(mutex_);
  int last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<int, std::function<void()>> updates_ ABSL_GUARDED_BY(mutex_);
};

Metrics::Metrics(const std::string& service, const std::string& version,
                 const std::string& revision, const std::string& backend)
    : registry_(std::make_shared<prometheus::Registry>()),
      source_(std::make_shared<Source>(registry_)) {
  Gauge("build_info", "What is running; always 1",
        {{"service", service}, {"version", version}, {"revision", revision}, {"backend", backend}})
      .Set(1);
  restarts_ = &Counter("process_restarts_total",
                       "Times that the supervisor has restarted this service; 0 without one",
                       {{"service", service}});
}

Metrics::~Metrics() = default;

prometheus::Counter& Metrics::Counter(const std::string& name, const std::string& help,
                                      const Labels& labels) {
  return prometheus::BuildCounter()
      .Name(kPrefix + name)
      .Help(help)
      .Register(*registry_)
      .Add(labels);
}

prometheus::Gauge& Metrics::Gauge(const std::string& name, const std::string& help,
                                  const Labels& labels) {
  return prometheus::BuildGauge().Name(kPrefix + name).Help(help).Register(*registry_).Add(labels);
}

prometheus::Histogram& Metrics::Histogram(const std::string& name, const std::string& help,
                                          const std::vector<double>& buckets,
                                          const Labels& labels) {
  return prometheus::BuildHistogram()
      .Name(kPrefix + name)
      .Help(help)
      .Register(*registry_)
      .Add(labels, buckets);
}

void Metrics::SetRestarts(int64_t restarts) { restarts_->Increment(static_cast<double>(restarts)); }

int Metrics::OnScrape(std::function<void()> update) { return source_->Add(std::move(update)); }

void Metrics::RemoveOnScrape(int id) { source_->Remove(id); }

std::string Metrics::Render() { return prometheus::TextSerializer().Serialize(source_->Collect()); }

absl::StatusOr<int> Metrics::Serve(const std::string& address) {
  absl::StatusOr<std::unique_ptr<MetricsServer>> server =
      MetricsServer::Start(address, [this] { return Render(); });
  if (!server.ok()) {
    return absl::Status(server.status().code(),
                        absl::StrCat("metrics: ", std::string(server.status().message()),
                                     "; choose another address"));
  }
  server_ = *std::move(server);
  return server_->port();
}

}  // namespace retroinfer::common
