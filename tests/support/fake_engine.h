// An Engine without a model, for tests of everything above the engine.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "gpu_worker/engine/engine.h"
#include "gpu_worker/engine/request_errors.h"
#include "gpu_worker/engine/sampling_validation.h"

namespace retroinfer {

// Checks requests as the real engine must, then gives each live request one token a step: token i
// is (last prompt token + 1 + i) mod vocab_size, its text the number and a space. One progress
// event comes before the first token.
//
// Threads: all methods on any thread; sinks are called on the fake's own thread.
class FakeEngine : public Engine {
 public:
  struct Options {
    int32_t vocab_size = 1000;
    EngineLimits limits{4096, {{2048, 4096, 4096}}, 8, 64};
    absl::Duration step_time = absl::ZeroDuration();
    int32_t eos_token = -1;   // ends a request, unless it ignores EOS
    int64_t fail_after = -1;  // tokens after which each request ends with `failure`
    absl::Status failure = absl::InternalError("the fake engine failed");
    std::string token_text;          // text of every token instead of its number
    int64_t tokens_together = 1000;  // the longest continuations that are measured together
    float wave_error = 0;  // of a measured log-probability under wave, less the retrieval ratio
  };

  explicit FakeEngine(Options options) : options_(std::move(options)), thread_([this] { Run(); }) {}
  FakeEngine() : FakeEngine(Options()) {}
  ~FakeEngine() override {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    thread_.join();
  }

  absl::Status Submit(GenerationRequest request, std::shared_ptr<GenerationSink> sink) override {
    absl::MutexLock lock(&mutex_);
    last_request_ = request;
    const absl::Status valid =
        ValidateRequest(request, options_.vocab_size, options_.limits.max_model_len);
    if (!valid.ok()) return valid;
    if (draining_) return DrainingError();
    if (live_.count(request.request_id) > 0) return RequestIdInUseError(request.request_id);
    if (live_.size() >= static_cast<size_t>(options_.limits.max_live_requests)) {
      return QueueFullError(live_.size(), static_cast<size_t>(options_.limits.max_live_requests),
                            absl::ZeroDuration());
    }
    const std::string id = request.request_id;
    live_[id] = Live{std::move(request), std::move(sink), absl::Now()};
    ++submitted_;
    return absl::OkStatus();
  }

  bool CanMeasureTogether(const AttentionSettings& /*attention*/, int64_t /*prompt_tokens*/,
                          int64_t continuation_tokens) const override {
    return continuation_tokens <= options_.tokens_together;
  }

  bool Abort(std::string_view request_id) override {
    absl::MutexLock lock(&mutex_);
    const auto live = live_.find(std::string(request_id));
    if (live == live_.end()) return false;
    live->second.aborted = true;
    return true;
  }

  void Drain(absl::Time deadline) override {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return live_.empty(); };
    if (mutex_.AwaitWithDeadline(absl::Condition(&idle), deadline)) return;
    for (auto& [id, live] : live_) live.aborted = true;
    mutex_.Await(absl::Condition(&idle));
  }

  const EngineLimits& limits() const override { return options_.limits; }

  EngineStats stats() const override {
    absl::MutexLock lock(&mutex_);
    EngineStats stats = stats_;
    stats.requests_running = static_cast<int64_t>(live_.size());
    stats.ready = ready_;
    stats.store_attached = ready_;
    return stats;
  }

  // While held, requests wait; Abort still ends them.
  void Hold(bool held) {
    absl::MutexLock lock(&mutex_);
    held_ = held;
  }
  void SetReady(bool ready) {
    absl::MutexLock lock(&mutex_);
    ready_ = ready;
  }
  void SetStats(const EngineStats& stats) {
    absl::MutexLock lock(&mutex_);
    stats_ = stats;
  }
  int64_t submitted() const {
    absl::MutexLock lock(&mutex_);
    return submitted_;
  }
  int64_t num_live() const {
    absl::MutexLock lock(&mutex_);
    return static_cast<int64_t>(live_.size());
  }
  // Waits until `count` requests are live; false after 10 s.
  bool AwaitLive(int64_t count) const {
    absl::MutexLock lock(&mutex_);
    const auto reached = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return static_cast<int64_t>(live_.size()) == count;
    };
    return mutex_.AwaitWithTimeout(absl::Condition(&reached), absl::Seconds(10));
  }
  GenerationRequest last_request() const {
    absl::MutexLock lock(&mutex_);
    return last_request_;
  }

 private:
  struct Live {
    GenerationRequest request;
    std::shared_ptr<GenerationSink> sink;
    absl::Time submitted;
    bool aborted = false;
    int64_t tokens = 0;
  };

  void Run() {
    while (true) {
      std::vector<std::string> ids;
      {
        absl::MutexLock lock(&mutex_);
        const auto work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
          return stopping_ || std::any_of(live_.begin(), live_.end(), [this](const auto& entry) {
                   return !held_ || entry.second.aborted;
                 });
        };
        mutex_.AwaitWithTimeout(absl::Condition(&work), absl::Milliseconds(20));
        if (stopping_ && live_.empty()) return;
        if (stopping_) {
          for (auto& [id, live] : live_) live.aborted = true;
        }
        for (const auto& [id, live] : live_) ids.push_back(id);
      }
      if (options_.step_time > absl::ZeroDuration()) absl::SleepFor(options_.step_time);
      for (const std::string& id : ids) Step(id);
    }
  }

  // The entry stays in `live_` while its sink is called: nobody else removes entries.
  void Step(const std::string& id) {
    Live* live = nullptr;
    bool aborted = false;
    bool held = false;
    {
      absl::MutexLock lock(&mutex_);
      live = &live_[id];
      aborted = live->aborted;
      held = held_;
    }
    const GenerationRequest& request = live->request;
    if (aborted) return Finish(id, live, FinishReason::kCancelled);
    if (absl::Now() >= request.deadline) return Finish(id, live, FinishReason::kDeadline);
    if (held) return;
    const int64_t prompt_tokens = static_cast<int64_t>(request.prompt.size());
    if (live->tokens == 0 && request.return_progress) {
      live->sink->OnProgress({prompt_tokens, 0, prompt_tokens, absl::Milliseconds(1)});
    }
    if (live->tokens == options_.fail_after) return Finish(id, live, FinishReason::kError);
    if (request.num_prompt_logprobs >= 0 && live->tokens == 0) {
      OutputDelta prompt;
      prompt.continuation = OutputDelta::kOfPrompt;
      for (size_t i = 1; i < request.prompt.size(); ++i) {
        prompt.tokens.push_back(MeasuredToken(request.prompt[i], request.num_prompt_logprobs));
      }
      live->sink->OnOutput(prompt);
    }
    if (IsScoring(request)) return Measure(id, live);
    const int32_t token = static_cast<int32_t>((int64_t{request.prompt.back()} + 1 + live->tokens) %
                                               options_.vocab_size);
    ++live->tokens;
    OutputDelta delta;
    delta.text = options_.token_text.empty() ? absl::StrCat(token, " ") : options_.token_text;
    delta.tokens.push_back({token, std::numeric_limits<float>::quiet_NaN(), {}});
    if (request.sampling.num_logprobs >= 0) {
      delta.tokens[0].logprob = -0.25f;
      for (int i = 0; i < request.sampling.num_logprobs; ++i) {
        delta.tokens[0].alternatives.push_back({token + i, -0.25f - static_cast<float>(i)});
      }
    }
    live->sink->OnOutput(delta);
    if (token == options_.eos_token && !request.sampling.ignore_eos) {
      return Finish(id, live, FinishReason::kStop);
    }
    if (live->tokens >= request.sampling.max_tokens) Finish(id, live, FinishReason::kLength);
  }

  // Every token has a log-probability of minus its id, and is greedy's if its id is even.
  static OutputToken MeasuredToken(int32_t token, int32_t num_alternatives) {
    OutputToken measured{token, -static_cast<float>(token), {}};
    measured.rank = token % 2 == 0 ? 1 : 2;
    for (int i = 0; i < num_alternatives; ++i) {
      measured.alternatives.push_back({token + i, -static_cast<float>(i)});
    }
    return measured;
  }

  // One token a step, of one continuation after the other.
  void Measure(const std::string& id, Live* live) {
    int64_t before = 0;
    const auto& continuations = live->request.continuations;
    for (size_t i = 0; i < continuations.size(); ++i) {
      const int64_t end = before + std::ssize(continuations[i]);
      if (live->tokens < end) {
        OutputDelta delta;
        delta.continuation = static_cast<int32_t>(i);
        delta.tokens.push_back(
            MeasuredToken(continuations[i][static_cast<size_t>(live->tokens - before)],
                          live->request.sampling.num_logprobs));
        const AttentionSettings& attention = live->request.attention;
        if (attention.policy == PolicyKind::kWave) {
          delta.tokens[0].logprob -=
              options_.wave_error * static_cast<float>(1 - attention.retrieval_ratio);
        }
        ++live->tokens;
        live->sink->OnOutput(delta);
        return;
      }
      before = end;
    }
    Finish(id, live, FinishReason::kLength);
  }

  void Finish(const std::string& id, Live* live, FinishReason reason) {
    GenerationResult result;
    result.reason = reason;
    if (reason == FinishReason::kError) result.status = options_.failure;
    if (reason == FinishReason::kStop) result.matched_token = options_.eos_token;
    result.prompt_tokens = static_cast<int64_t>(live->request.prompt.size());
    result.completion_tokens = live->tokens;
    result.seed = live->request.sampling.seed;
    result.time_to_first_token = absl::Milliseconds(2);
    result.prefill_time = absl::Milliseconds(1);
    result.decode_time = absl::Milliseconds(live->tokens);
    result.kv_read_ratio = 0.25;
    const std::shared_ptr<GenerationSink> sink = live->sink;
    {
      absl::MutexLock lock(&mutex_);
      live_.erase(id);
      stats_.prompt_tokens += static_cast<uint64_t>(result.prompt_tokens);
      stats_.generation_tokens += static_cast<uint64_t>(result.completion_tokens);
    }
    sink->OnFinish(result);
  }

  const Options options_;

  mutable absl::Mutex mutex_;
  std::map<std::string, Live> live_ ABSL_GUARDED_BY(mutex_);
  EngineStats stats_ ABSL_GUARDED_BY(mutex_);
  GenerationRequest last_request_ ABSL_GUARDED_BY(mutex_);
  int64_t submitted_ ABSL_GUARDED_BY(mutex_) = 0;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  bool ready_ ABSL_GUARDED_BY(mutex_) = true;
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace retroinfer
