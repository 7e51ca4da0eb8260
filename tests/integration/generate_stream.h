// One Generate call whose events a thread of its own collects.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "retroinfer/generation/v1/generation.grpc.pb.h"

namespace retroinfer::test_support {

// Tokens that arrived together.
struct TokenArrival {
  absl::Time time;
  size_t num_tokens = 0;
};

// Threads: all methods on any thread.
// Owns:    the call, which its destructor cancels, and one thread.
class GenerateStream {
 public:
  GenerateStream(generation::v1::GenerationService::Stub& stub,
                 generation::v1::GenerateRequest request);
  ~GenerateStream();
  GenerateStream(const GenerateStream&) = delete;
  GenerateStream& operator=(const GenerateStream&) = delete;

  // Waits for so many tokens. Returns false if the call ended or `timeout` passed before.
  bool WaitForTokens(size_t num_tokens, absl::Duration timeout = absl::Minutes(2));
  // Waits for the first progress event. Returns false as above.
  bool WaitForProgress(absl::Duration timeout = absl::Minutes(2));
  // Waits for the end of the call. DEADLINE_EXCEEDED after two minutes.
  grpc::Status Wait();
  void Cancel() { context_.TryCancel(); }
  bool ended() const;

  std::vector<int32_t> tokens() const;
  size_t num_tokens() const;
  std::vector<TokenArrival> arrivals() const;
  // When the call began, or the last event came, whichever is later.
  absl::Time last_event() const;
  generation::v1::Finished finished() const;  // as it is sent; empty if it did not come

 private:
  void Read(generation::v1::GenerationService::Stub& stub,
            const generation::v1::GenerateRequest& request);

  grpc::ClientContext context_;
  mutable absl::Mutex mutex_;
  std::vector<int32_t> tokens_ ABSL_GUARDED_BY(mutex_);
  std::vector<TokenArrival> arrivals_ ABSL_GUARDED_BY(mutex_);
  bool progressed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Time last_event_ ABSL_GUARDED_BY(mutex_) = absl::Now();
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  generation::v1::Finished finished_ ABSL_GUARDED_BY(mutex_);
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

// `num_tokens` token ids below 1000, the same for the same seed.
std::vector<int32_t> RandomTokens(size_t num_tokens, uint64_t seed);

// A request that ends after max_tokens tokens and no earlier; the tokens are drawn from the whole
// distribution with `seed`, so that the least change of the logits shows.
generation::v1::GenerateRequest SampledRequest(
    const std::vector<int32_t>& prompt, int32_t max_tokens, uint64_t seed,
    generation::v1::AttentionPolicy policy = generation::v1::ATTENTION_POLICY_WAVE);

// Runs a request; again, for up to two minutes, if the store did not answer the worker in time.
// Returns its tokens, none if it failed (the status goes to stderr).
std::vector<int32_t> Generate(generation::v1::GenerationService::Stub& stub,
                              const generation::v1::GenerateRequest& request);

}  // namespace retroinfer::test_support
