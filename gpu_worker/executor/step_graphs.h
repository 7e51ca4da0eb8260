// Replays a decode step as one piece of work where the device can record work.
//
// A step of a shape that comes for the first time is enqueued piece by piece, one that comes again
// is recorded and replayed from then on. The first time also lets kernels be loaded, which must not
// happen while work is recorded, and shapes that never come back cost nothing.
//
// Threads: the engine's thread.
// Owns:    the graphs of the shapes used last.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "gpu_worker/device/device.h"

namespace retroinfer {

class StepGraphs {
 public:
  struct Counters {
    uint64_t recorded = 0;
    uint64_t launched = 0;
  };

  // Keeps up to `capacity` shapes.
  StepGraphs(Device& device, Stream& stream, size_t capacity)
      : device_(device), stream_(stream), capacity_(capacity) {}

  // Enqueues a step. What `enqueue` enqueues must depend on `shape` alone (Device::Capture).
  // REQUIRES: the device has finished the last step.
  absl::Status Run(std::span<const uint64_t> shape, absl::FunctionRef<absl::Status()> enqueue);

  const Counters& counters() const { return counters_; }

 private:
  struct Entry {
    std::vector<uint64_t> shape;
    std::unique_ptr<Graph> graph;  // null until the shape comes again
    uint64_t last_use = 0;
  };

  Entry* Find(std::span<const uint64_t> shape);
  void Remember(std::span<const uint64_t> shape);

  Device& device_;
  Stream& stream_;
  const size_t capacity_;
  std::vector<Entry> entries_;
  uint64_t num_uses_ = 0;
  Counters counters_;
};

}  // namespace retroinfer
