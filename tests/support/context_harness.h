// A worker's server over a FakeEngine and a FakeContextStore, in the test's process.
#pragma once

#include <memory>
#include <string>

#include "retroinfer/generation/v1/contexts.grpc.pb.h"
#include "tests/support/fake_context_store.h"
#include "tests/support/worker_harness.h"

namespace retroinfer {

class ContextHarness {
 public:
  explicit ContextHarness(int computations = 1, WorkerHarness::Settings settings = {})
      : worker_(WithoutEngine(std::move(settings))), store_(worker_.folder(), computations) {
    worker_.model().segment_fingerprint = "model";
    worker_.model().dense_below = 1200;
    worker_.model().store_target = store_.target();
    worker_.Serve();
  }

  WorkerHarness& worker() { return worker_; }
  FakeContextStore& store() { return store_; }
  std::unique_ptr<generation::v1::ContextService::Stub> Stub() const {
    return generation::v1::ContextService::NewStub(worker_.Channel());
  }

 private:
  static WorkerHarness::Settings WithoutEngine(WorkerHarness::Settings settings) {
    settings.serve = false;
    settings.engine.vocab_size = 300;
    return settings;
  }

  WorkerHarness worker_;
  FakeContextStore store_;
};

}  // namespace retroinfer
