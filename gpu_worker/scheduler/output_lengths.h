// How many tokens requests generate, learned from requests that have ended: by tenant and by the
// maximum that a request asks for, since clients that always ask for the same maximum stop alike.
// How many requests are admitted at a time depends on this, never whether admitted requests can
// end.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "gpu_worker/scheduler/step_plan.h"

namespace retroinfer {

class OutputLengths {
 public:
  // Learns from requests that have ended: they decoded at the last call, and are not in `input`.
  void Update(const SchedulerInput& input);
  // Expected number of tokens that the request generates in all: four of five requests of its kind
  // generate no more. A request that has passed that number is expected to generate twice what it
  // has. Never more than the request may generate.
  int64_t Expected(const RequestDescription& request) const;

 private:
  static constexpr size_t kKinds = 24;    // by the maximum's number of bits
  static constexpr size_t kSamples = 32;  // the last ones
  static constexpr size_t kLeastSamples = 4;
  // Lengths of the last requests of one kind.
  struct Lengths {
    std::array<int32_t, kSamples> tokens = {};
    size_t count = 0;     // ever seen
    int64_t typical = 0;  // four of five have no more
    void Add(int64_t length);
  };
  using ByKind = std::array<Lengths, kKinds>;
  struct Decoding {
    uint32_t tenant = 0;
    size_t kind = 0;
    int64_t generated = 0;
    uint64_t round = 0;  // the last round whose input had the request
  };

  static size_t KindOf(int64_t max_tokens);

  std::vector<ByKind> of_tenants_;
  ByKind of_all_;
  absl::flat_hash_map<uint64_t, Decoding> decoding_;
  uint64_t round_ = 0;
};

}  // namespace retroinfer
