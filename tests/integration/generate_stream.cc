#include "tests/integration/generate_stream.h"

#include <cstdio>
#include <random>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace retroinfer::test_support {

namespace v1 = generation::v1;

GenerateStream::GenerateStream(v1::GenerationService::Stub& stub, v1::GenerateRequest request)
    : thread_([this, &stub, request = std::move(request)] { Read(stub, request); }) {}

GenerateStream::~GenerateStream() {
  context_.TryCancel();
  thread_.join();
}

void GenerateStream::Read(v1::GenerationService::Stub& stub, const v1::GenerateRequest& request) {
  const auto reader = stub.Generate(&context_, request);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    const absl::Time now = absl::Now();
    absl::MutexLock lock(&mutex_);
    last_event_ = now;
    progressed_ |= response.has_progress();
    if (response.has_finished()) finished_ = response.finished();
    if (const auto& ids = response.output().token_ids(); !ids.empty()) {
      tokens_.insert(tokens_.end(), ids.begin(), ids.end());
      arrivals_.push_back({now, static_cast<size_t>(ids.size())});
    }
  }
  const grpc::Status status = reader->Finish();
  absl::MutexLock lock(&mutex_);
  status_ = status;
  ended_ = true;
}

bool GenerateStream::WaitForTokens(size_t num_tokens, absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return tokens_.size() >= num_tokens || ended_;
  };
  mutex_.AwaitWithTimeout(absl::Condition(&done), timeout);
  return tokens_.size() >= num_tokens && !ended_;
}

bool GenerateStream::WaitForProgress(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto done = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return progressed_ || ended_; };
  mutex_.AwaitWithTimeout(absl::Condition(&done), timeout);
  return progressed_ && !ended_;
}

grpc::Status GenerateStream::Wait() {
  absl::MutexLock lock(&mutex_);
  if (!mutex_.AwaitWithTimeout(absl::Condition(&ended_), absl::Minutes(2))) {
    return grpc::Status(grpc::StatusCode::DEADLINE_EXCEEDED, "the stream did not end");
  }
  return status_;
}

bool GenerateStream::ended() const {
  absl::MutexLock lock(&mutex_);
  return ended_;
}
std::vector<int32_t> GenerateStream::tokens() const {
  absl::MutexLock lock(&mutex_);
  return tokens_;
}
size_t GenerateStream::num_tokens() const {
  absl::MutexLock lock(&mutex_);
  return tokens_.size();
}
std::vector<TokenArrival> GenerateStream::arrivals() const {
  absl::MutexLock lock(&mutex_);
  return arrivals_;
}
absl::Time GenerateStream::last_event() const {
  absl::MutexLock lock(&mutex_);
  return last_event_;
}
v1::Finished GenerateStream::finished() const {
  absl::MutexLock lock(&mutex_);
  return finished_;
}

std::vector<int32_t> RandomTokens(size_t num_tokens, uint64_t seed) {
  std::mt19937_64 generator(seed);
  std::vector<int32_t> tokens(num_tokens);
  for (int32_t& token : tokens) token = static_cast<int32_t>(generator() % 1000);
  return tokens;
}

v1::GenerateRequest SampledRequest(const std::vector<int32_t>& prompt, int32_t max_tokens,
                                   uint64_t seed, v1::AttentionPolicy policy) {
  v1::GenerateRequest request;
  request.mutable_token_ids()->mutable_ids()->Add(prompt.begin(), prompt.end());
  request.mutable_sampling()->set_temperature(1);
  request.mutable_sampling()->set_top_p(1);
  request.mutable_sampling()->set_seed(seed);
  request.mutable_sampling()->set_max_tokens(max_tokens);
  request.mutable_sampling()->set_ignore_eos(true);
  request.mutable_attention()->set_policy(policy);
  return request;
}

std::vector<int32_t> Generate(v1::GenerationService::Stub& stub,
                              const v1::GenerateRequest& request) {
  // A store on a busy machine may not answer a worker in the time that it gets: then nothing has
  // run, and the request is made again.
  const absl::Time deadline = absl::Now() + absl::Minutes(2);
  while (true) {
    GenerateStream stream(stub, request);
    const grpc::Status status = stream.Wait();
    if (status.ok()) return stream.tokens();
    std::fprintf(stderr, "generation: %s\n", status.error_message().c_str());
    if (!absl::StrContains(status.error_message(), "kv_store_service did not answer within") ||
        absl::Now() > deadline) {
      return {};
    }
  }
}

}  // namespace retroinfer::test_support
