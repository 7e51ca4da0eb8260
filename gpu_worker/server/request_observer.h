// What the server records about requests, for logs and metrics.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "gpu_worker/engine/generation.h"

namespace retroinfer {

// A continuation that the engine has ended.
struct RequestSummary {
  std::string engine_request_id;
  std::string tenant;  // of the key; empty where keys are not of tenants
  AttentionSettings attention;
  GenerationResult result;
  absl::Duration end_to_end;   // from the arrival of the call to OnFinish
  bool is_scoring = false;     // it measured tokens, and generated none
  int64_t earlier_tokens = 0;  // of its prompt: the turn before had them; 0: there was none
};

// Threads: OnTokenInterval() on the engine's output thread; the others on any thread.
class RequestObserver {
 public:
  virtual ~RequestObserver() = default;
  // `num_tokens` arrived `interval` after those before them.
  virtual void OnTokenInterval(absl::Duration interval, int64_t num_tokens) = 0;
  virtual void OnFinished(const RequestSummary& summary) = 0;
  // A call that ended before the engine took it.
  virtual void OnRefused(const std::string& request_id, const absl::Status& status) = 0;
};

}  // namespace retroinfer
