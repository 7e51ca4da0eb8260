// Logs every request that ends and counts it in the metrics.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/log/log_rate_limiter.h"
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
  struct TenantCounters {
    prometheus::Counter* requests;
    prometheus::Counter* prompt_tokens;
    prometheus::Counter* generation_tokens;
    prometheus::Counter* first_token_seconds;
  };
  TenantCounters& CountersOf(const std::string& tenant)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(tenants_mutex_);
  void CountTenant(const RequestSummary& summary) ABSL_LOCKS_EXCLUDED(tenants_mutex_);
  void CountConversation(const RequestSummary& summary);
  void AddRefusal(const char* reason);
  prometheus::Counter& OfKind(const char* kind);
  // Returns what to add to the line, nothing if it is to be left out.
  std::optional<std::string> AdmitLine() ABSL_LOCKS_EXCLUDED(log_mutex_);

  common::Metrics& metrics_;
  std::map<std::string, prometheus::Counter*> refusals_;  // by reason; constant
  absl::Mutex tenants_mutex_;
  // Names are those of the operator's file, so there are not many.
  std::map<std::string, TenantCounters> tenants_ ABSL_GUARDED_BY(tenants_mutex_);
  prometheus::Histogram& time_to_first_token_;
  prometheus::Histogram& inter_token_latency_;
  prometheus::Histogram& end_to_end_;
  prometheus::Histogram& queue_;
  prometheus::Histogram& prefill_;
  prometheus::Histogram& decode_;
  prometheus::Histogram& prompt_tokens_;
  prometheus::Histogram& generation_tokens_;
  prometheus::Histogram& unseen_mass_;
  prometheus::Counter& conversation_tokens_;
  prometheus::Counter& conversation_earlier_tokens_;
  prometheus::Counter& conversation_recomputed_tokens_;

  // Of requests that cost a client nothing: refused ones and cancelled ones.
  absl::Mutex log_mutex_;
  common::LogRateLimiter log_limiter_ ABSL_GUARDED_BY(log_mutex_){absl::Seconds(1), 20};
};

}  // namespace retroinfer
