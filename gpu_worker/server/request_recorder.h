// Logs every request that ends and counts it in the metrics.
#pragma once

#include <map>
#include <string>

#include "common/metrics/metrics.h"
#include "gpu_worker/server/request_observer.h"

namespace retroinfer {

// The line that the log gets for `summary`.
std::string DescribeRequest(const RequestSummary& summary);

// Threads: as RequestObserver.
class RequestRecorder : public RequestObserver {
 public:
  // REQUIRES: `metrics` outlives this.
  explicit RequestRecorder(common::Metrics& metrics);

  void OnTokenInterval(absl::Duration interval, int64_t num_tokens) override;
  void OnFinished(const RequestSummary& summary) override;
  void OnRefused(const std::string& request_id, const absl::Status& status) override;

 private:
  void AddRefusal(const char* reason);

  common::Metrics& metrics_;
  std::map<std::string, prometheus::Counter*> refusals_;  // by reason; constant
  prometheus::Histogram& time_to_first_token_;
  prometheus::Histogram& inter_token_latency_;
  prometheus::Histogram& end_to_end_;
  prometheus::Histogram& queue_;
  prometheus::Histogram& prefill_;
  prometheus::Histogram& decode_;
  prometheus::Histogram& prompt_tokens_;
  prometheus::Histogram& generation_tokens_;
};

}  // namespace retroinfer
