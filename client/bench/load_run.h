// Sends the requests of a load test and notes when their tokens come.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "client/bench/load_plan.h"
#include "client/command/connection.h"

namespace retroinfer::client {

// What one request gave. Times are since it was sent.
struct RequestRecord {
  bool sent = false;          // false: the test was interrupted before
  std::string error;          // empty: it succeeded
  std::string request_class;  // as planned
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t completion_tokens = 0;
  absl::Duration first_token;
  std::vector<absl::Duration> gaps;  // between one output event and the next
  absl::Duration end;                // when the call ended
};

struct LoadRunOptions {
  generation::v1::GenerateRequest request;        // what all requests have in common
  int32_t max_concurrency = 0;                    // requests in flight, at least 1
  std::function<void(int64_t done)> on_progress;  // on any thread, one call at a time
  std::function<bool()> should_stop;  // asked many times a second, on the calling thread
};

struct LoadRun {
  std::vector<RequestRecord> records;  // of each planned request, in order
  absl::Duration duration;             // from the first request to the end of the last
  bool interrupted = false;
};

// Runs the plan to its end. A request whose time has come waits while max_concurrency are in
// flight; its clock starts when it is sent. When should_stop() says so, what is in flight is
// cancelled and no more is sent.
LoadRun RunLoad(const Connection& connection, const std::vector<PlannedRequest>& plan,
                const LoadRunOptions& options);

}  // namespace retroinfer::client
