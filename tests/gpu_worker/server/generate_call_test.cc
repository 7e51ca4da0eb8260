#include "gpu_worker/server/generate_call.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "common/status/error_reason.h"
#include "tests/support/fake_engine.h"

namespace retroinfer {
namespace {

using generation::v1::GenerateResponse;

// A client that reads one event whenever it is told to, or always.
class FakeStream : public EventStream {
 public:
  void Attach(std::shared_ptr<GenerateCall> call) { call_ = std::move(call); }

  void Write(const GenerateResponse* event) override {
    {
      absl::MutexLock lock(&mutex_);
      EXPECT_EQ(pending_, nullptr) << "a second write before the first was done";
      EXPECT_FALSE(finished_);
      pending_ = event;
      if (!reading_) return;
    }
    Deliver(true);
  }
  void Finish(const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_FALSE(finished_);
    finished_ = true;
    status_ = status;
  }

  // Stops or resumes reading.
  void SetReading(bool reading) {
    {
      absl::MutexLock lock(&mutex_);
      reading_ = reading;
      if (!reading || pending_ == nullptr) return;
    }
    Deliver(true);
  }
  // Completes the write in flight. Runs on a thread of its own as gRPC's callbacks do, so that
  // a long stream does not recurse.
  void Deliver(bool ok) {
    delivery_.Post([this, ok] {
      {
        absl::MutexLock lock(&mutex_);
        if (pending_ == nullptr) return;
        if (ok) events_.push_back(*pending_);
        pending_ = nullptr;
      }
      call_->OnWriteDone(ok);
    });
  }

  absl::Status AwaitFinish() {
    absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&finished_), absl::Seconds(20)));
    return status_;
  }
  bool finished() {
    absl::MutexLock lock(&mutex_);
    return finished_;
  }
  std::vector<GenerateResponse> events() {
    absl::MutexLock lock(&mutex_);
    return events_;
  }

 private:
  std::shared_ptr<GenerateCall> call_;
  absl::Mutex mutex_;
  const GenerateResponse* pending_ ABSL_GUARDED_BY(mutex_) = nullptr;
  bool reading_ ABSL_GUARDED_BY(mutex_) = true;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<GenerateResponse> events_ ABSL_GUARDED_BY(mutex_);
  TaskPool delivery_{1};
};

class RecordingObserver : public RequestObserver {
 public:
  void OnTokenInterval(absl::Duration, int64_t num_tokens) override {
    absl::MutexLock lock(&mutex_);
    intervals += num_tokens;
  }
  void OnFinished(const RequestSummary& summary) override {
    absl::MutexLock lock(&mutex_);
    finished.push_back(summary);
  }
  void OnRefused(const std::string& request_id, const absl::Status& status) override {
    absl::MutexLock lock(&mutex_);
    refused.push_back(request_id);
    refusals.push_back(common::ReasonOf(status).reason);
  }
  size_t num_finished() {
    absl::MutexLock lock(&mutex_);
    return finished.size();
  }

  absl::Mutex mutex_;
  int64_t intervals = 0;
  std::vector<RequestSummary> finished;
  std::vector<std::string> refused;
  std::vector<std::string> refusals;  // their reasons
};

class GenerateCallTest : public ::testing::Test {
 protected:
  void MakeEngine(FakeEngine::Options options) { engine_ = std::make_unique<FakeEngine>(options); }

  void MakeCall(size_t max_pending_bytes = 4 << 20, absl::Time deadline = absl::InfiniteFuture()) {
    if (engine_ == nullptr) engine_ = std::make_unique<FakeEngine>();
    context_.engine = engine_.get();
    context_.sender = sender_.get();
    context_.observer = &observer_;
    context_.max_pending_bytes = max_pending_bytes;
    call_ = std::make_shared<GenerateCall>(context_, &stream_, deadline);
    stream_.Attach(call_);
  }

  static GenerateCall::Submission MakeSubmission(int32_t max_tokens, int n = 1) {
    GenerateCall::Submission submission;
    submission.request_id = "req";
    for (int i = 0; i < n; ++i) {
      GenerationRequest request;
      request.request_id = GenerateCall::EngineRequestId("req", i);
      request.prompt = {10 * (i + 1)};
      request.sampling.max_tokens = max_tokens;
      request.return_progress = true;
      submission.continuations.push_back(std::move(request));
    }
    return submission;
  }

  // Of continuation `index`.
  std::string Text(int index = 0) {
    std::string text;
    for (const GenerateResponse& event : stream_.events()) {
      if (event.index() == index) text += event.output().text();
    }
    return text;
  }
  std::vector<GenerateResponse> Finishes() {
    std::vector<GenerateResponse> result;
    for (const GenerateResponse& event : stream_.events()) {
      if (event.has_finished()) result.push_back(event);
    }
    return result;
  }

  RecordingObserver observer_;
  std::unique_ptr<TaskPool> sender_ = std::make_unique<TaskPool>(1);
  FakeStream stream_;
  std::unique_ptr<FakeEngine> engine_;
  GenerateCall::Context context_{};
  std::shared_ptr<GenerateCall> call_;

  void TearDown() override {
    engine_.reset();  // its thread posts to the sender
    sender_.reset();
    stream_.Attach(nullptr);
  }
};

TEST_F(GenerateCallTest, StreamsEverythingThenFinishes) {
  MakeCall();
  GenerateCall::Submission submission = MakeSubmission(5);
  submission.want_progress = true;
  call_->Submit(std::move(submission));
  EXPECT_TRUE(stream_.AwaitFinish().ok());
  EXPECT_TRUE(stream_.events().front().has_progress());
  EXPECT_EQ(Text(), "11 12 13 14 15 ");
  ASSERT_EQ(Finishes().size(), 1u);
  EXPECT_EQ(Finishes()[0].finished().reason(), generation::v1::FINISH_REASON_LENGTH);
  EXPECT_TRUE(stream_.events().back().has_finished());
  sender_.reset();
  ASSERT_EQ(observer_.num_finished(), 1u);
  EXPECT_EQ(observer_.intervals, 4);
  sender_ = std::make_unique<TaskPool>(1);
}

TEST_F(GenerateCallTest, ContinuationsEndOneByOne) {
  MakeCall();
  call_->Submit(MakeSubmission(3, 4));
  EXPECT_TRUE(stream_.AwaitFinish().ok());
  EXPECT_EQ(Finishes().size(), 4u);
  EXPECT_EQ(Text(0), "11 12 13 ");
  EXPECT_EQ(Text(3), "41 42 43 ");
}

TEST_F(GenerateCallTest, ASlowReaderGetsEverythingMerged) {
  MakeCall();
  stream_.SetReading(false);
  call_->Submit(MakeSubmission(500));
  ASSERT_TRUE(engine_->AwaitLive(0));
  stream_.SetReading(true);
  EXPECT_TRUE(stream_.AwaitFinish().ok());
  EXPECT_LE(stream_.events().size(), 5u);
  int64_t tokens = 0;
  for (const GenerateResponse& event : stream_.events()) tokens += event.output().token_ids_size();
  EXPECT_EQ(tokens, 500);
}

TEST_F(GenerateCallTest, AReaderThatIsTooSlowLosesTheRequest) {
  FakeEngine::Options options;
  options.token_text = std::string(1000, 'x');
  MakeEngine(options);
  MakeCall(/*max_pending_bytes=*/20'000);
  stream_.SetReading(false);
  call_->Submit(MakeSubmission(4000));
  ASSERT_TRUE(engine_->AwaitLive(0)) << "the request was not aborted";
  // If the engine was quicker than the first write, the call has ended already.
  stream_.SetReading(true);
  const absl::Status status = stream_.AwaitFinish();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(common::ReasonOf(status).reason, "SLOW_CLIENT");
  EXPECT_TRUE(Finishes().empty());
}

TEST_F(GenerateCallTest, AReaderWithMoreThanItsShareOfAllUnreadOutputLosesTheRequest) {
  FakeEngine::Options options;
  options.token_text = std::string(1000, 'x');
  MakeEngine(options);
  context_.pending = std::make_shared<PendingBudget>(100'000);
  PendingBudget::Share others(context_.pending);
  others.Set(90'000);
  MakeCall();
  stream_.SetReading(false);
  call_->Submit(MakeSubmission(4000));
  ASSERT_TRUE(engine_->AwaitLive(0)) << "the request was not aborted";
  stream_.SetReading(true);
  const absl::Status status = stream_.AwaitFinish();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(common::ReasonOf(status).reason, "SLOW_CLIENT");
  EXPECT_LT(context_.pending->bytes(), 200'000);
}

TEST_F(GenerateCallTest, ARequestThatTheEndOfTheServerCancelsBeforeItsFirstTokenCanBeTriedAgain) {
  std::atomic<bool> draining{false};
  context_.draining = &draining;
  MakeCall();
  engine_->Hold(true);
  call_->Submit(MakeSubmission(100));
  ASSERT_TRUE(engine_->AwaitLive(1));
  draining = true;
  engine_->Drain(absl::Now());
  const absl::Status status = stream_.AwaitFinish();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(common::ReasonOf(status).reason, "DRAINING");
}

TEST_F(GenerateCallTest, CancellationEndsTheRequestInTheEngineFirst) {
  MakeCall();
  engine_->Hold(true);
  call_->Submit(MakeSubmission(100, 2));
  ASSERT_TRUE(engine_->AwaitLive(2));
  call_->OnCancelled();
  EXPECT_EQ(stream_.AwaitFinish().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(engine_->num_live(), 0);
}

TEST_F(GenerateCallTest, CancellationBeforeSubmissionNeverReachesTheEngine) {
  MakeCall();
  call_->OnCancelled();
  EXPECT_FALSE(stream_.finished());
  call_->Submit(MakeSubmission(100));
  EXPECT_EQ(stream_.AwaitFinish().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(engine_->submitted(), 0);
  EXPECT_EQ(observer_.refusals, std::vector<std::string>{"CANCELLED"}) << "it is counted";
}

// gRPC tells of a call whose deadline has passed as of one that its client has cancelled.
TEST_F(GenerateCallTest, ACallThatItsDeadlineEndsCountsAsThat) {
  struct Case {
    absl::Duration left;
    FinishReason reason;
  };
  for (const Case& c : {Case{absl::Milliseconds(20), FinishReason::kDeadline},
                        Case{-absl::Seconds(1), FinishReason::kDeadline},
                        Case{absl::Minutes(1), FinishReason::kCancelled}}) {
    engine_.reset();
    observer_.finished.clear();
    FakeStream stream;
    engine_ = std::make_unique<FakeEngine>();
    engine_->Hold(true);
    auto call = std::make_shared<GenerateCall>(
        GenerateCall::Context{engine_.get(), sender_.get(), &observer_, 4 << 20}, &stream,
        absl::Now() + c.left);
    stream.Attach(call);
    call->Submit(MakeSubmission(100));
    ASSERT_TRUE(engine_->AwaitLive(1));
    call->OnCancelled();
    EXPECT_FALSE(stream.AwaitFinish().ok());
    EXPECT_TRUE(stream.events().empty());
    engine_.reset();
    sender_ = std::make_unique<TaskPool>(1);  // what was posted is done
    ASSERT_EQ(observer_.finished.size(), 1u);
    EXPECT_EQ(observer_.finished[0].result.reason, c.reason) << c.left;
    stream.Attach(nullptr);
  }
}

TEST_F(GenerateCallTest, ADeadlineBeforeSubmissionIsCountedAsThat) {
  MakeCall(4 << 20, absl::Now() - absl::Milliseconds(1));
  call_->OnCancelled();
  call_->Submit(MakeSubmission(100, 2));
  EXPECT_EQ(stream_.AwaitFinish().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(observer_.refusals, std::vector<std::string>{"DEADLINE"});
}

TEST_F(GenerateCallTest, ABrokenStreamEndsTheRequest) {
  FakeEngine::Options options;
  options.step_time = absl::Milliseconds(1);
  MakeEngine(options);
  MakeCall();
  stream_.SetReading(false);
  call_->Submit(MakeSubmission(4000));
  ASSERT_TRUE(engine_->AwaitLive(1));
  while (engine_->num_live() == 1) {  // until the first write has failed
    stream_.Deliver(false);
    absl::SleepFor(absl::Milliseconds(1));
  }
  EXPECT_EQ(stream_.AwaitFinish().code(), absl::StatusCode::kCancelled);
}

TEST_F(GenerateCallTest, AnEngineErrorComesAfterTheOutputBeforeIt) {
  FakeEngine::Options options;
  options.fail_after = 3;
  MakeEngine(options);
  MakeCall();
  call_->Submit(MakeSubmission(10));
  const absl::Status status = stream_.AwaitFinish();
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(Text(), "11 12 13 ");
  EXPECT_TRUE(Finishes().empty());
}

TEST_F(GenerateCallTest, ARefusedContinuationTakesTheOthersWithIt) {
  MakeCall();
  engine_->Hold(true);
  GenerateCall::Submission submission = MakeSubmission(10, 3);
  submission.continuations[2].prompt.clear();
  call_->Submit(std::move(submission));
  EXPECT_EQ(common::ReasonOf(stream_.AwaitFinish()).reason, "EMPTY_PROMPT");
  EXPECT_EQ(engine_->num_live(), 0);
  EXPECT_EQ(observer_.refused, std::vector<std::string>{"req"});
}

TEST_F(GenerateCallTest, RefuseFinishesAtOnce) {
  MakeCall();
  call_->Refuse("req", absl::InvalidArgumentError("no"));
  EXPECT_EQ(stream_.AwaitFinish().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(observer_.refused, std::vector<std::string>{"req"});
}

GenerateCall::Submission WithDeadline(GenerateCall::Submission submission, bool of_call) {
  submission.continuations[0].deadline = absl::Now() + absl::Milliseconds(30);
  submission.deadline_is_of_call = of_call;
  return submission;
}

TEST_F(GenerateCallTest, TheCallsDeadlineIsAStatus) {
  MakeCall();
  engine_->Hold(true);
  call_->Submit(WithDeadline(MakeSubmission(10), true));
  EXPECT_EQ(stream_.AwaitFinish().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(Finishes().empty());
}

TEST_F(GenerateCallTest, TheRequestsTimeoutIsAFinishReason) {
  MakeCall();
  engine_->Hold(true);
  call_->Submit(WithDeadline(MakeSubmission(10), false));
  EXPECT_TRUE(stream_.AwaitFinish().ok());
  ASSERT_EQ(Finishes().size(), 1u);
  EXPECT_EQ(Finishes()[0].finished().reason(), generation::v1::FINISH_REASON_DEADLINE);
}

}  // namespace
}  // namespace retroinfer
