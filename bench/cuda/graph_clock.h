// Times what a GPU does of recorded graphs, whose work may run on two streams side by side.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "bench/support/measure.h"
#include "gpu_worker/device/cuda/cuda_stream.h"
#include "tests/support/backends.h"

namespace retroinfer::bench {

// Ends the program with the reason unless all is well.
inline void Ok(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  std::abort();
}
inline void Ok(cudaError_t code) {
  if (code == cudaSuccess) return;
  std::fprintf(stderr, "%s\n", cudaGetErrorString(code));
  std::abort();
}

// Times graphs on one stream; `side` runs beside it.
class GraphClock {
 public:
  explicit GraphClock(test_support::Backend& backend)
      : stream_(static_cast<CudaStream&>(*backend.stream)),
        side_(static_cast<CudaStream&>(*backend.background)) {
    for (cudaEvent_t* event : {&begin_, &end_}) Ok(cudaEventCreate(event));
    for (cudaEvent_t* event : {&fork_, &join_}) {
      Ok(cudaEventCreateWithFlags(event, cudaEventDisableTiming));
    }
    estimated_ = *backend.device->CreateEvent();
    admitted_ = *backend.device->CreateEvent();
  }
  ~GraphClock() {
    for (cudaEvent_t event : {begin_, end_, fork_, join_}) (void)cudaEventDestroy(event);
  }

  CudaStream& stream() { return stream_; }
  CudaStream& side() { return side_; }
  Event& estimated() { return *estimated_; }
  Event& admitted() { return *admitted_; }

  // While recording: what is enqueued on side() runs beside later work of stream(), until Join().
  void Fork() {
    Ok(cudaEventRecord(fork_, stream_.get()));
    Ok(cudaStreamWaitEvent(side_.get(), fork_));
  }
  void Join() {
    Ok(cudaEventRecord(join_, side_.get()));
    Ok(cudaStreamWaitEvent(stream_.get(), join_));
  }

  // Median time in microseconds of what `enqueue` puts on the stream.
  double Time(const std::function<void()>& enqueue) {
    cudaGraph_t graph;
    cudaGraphExec_t program;
    Ok(cudaStreamBeginCapture(stream_.get(), cudaStreamCaptureModeThreadLocal));
    enqueue();
    Ok(cudaStreamEndCapture(stream_.get(), &graph));
    Ok(cudaGraphInstantiate(&program, graph, 0));
    std::vector<float> times;
    const int rounds = IsSmoke() ? 3 : 40;
    for (int round = -3; round < rounds; ++round) {
      Ok(cudaEventRecord(begin_, stream_.get()));
      Ok(cudaGraphLaunch(program, stream_.get()));
      Ok(cudaEventRecord(end_, stream_.get()));
      Ok(cudaEventSynchronize(end_));
      float milliseconds = 0;
      Ok(cudaEventElapsedTime(&milliseconds, begin_, end_));
      if (round >= 0) times.push_back(milliseconds);
    }
    Ok(cudaGraphExecDestroy(program));
    Ok(cudaGraphDestroy(graph));
    std::sort(times.begin(), times.end());
    return 1e3 * double{times[times.size() / 2]};
  }

 private:
  CudaStream& stream_;
  CudaStream& side_;
  cudaEvent_t begin_, end_, fork_, join_;
  std::unique_ptr<Event> estimated_, admitted_;
};

}  // namespace retroinfer::bench
