// How many tokens requests generate, learned from those that have ended: by tenant and by what they
// were allowed at most, since clients that always ask for the same maximum stop alike. Only how
// many requests are let in at a time depends on it, never whether those can end.
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
  // Requests that decoded at the last call and are not there any more have ended.
  void Update(const SchedulerInput& input);
  // Tokens that the request, of which one more or less is known, will generate at all: as many as
  // four of five of its kind, or twice what it has by now, and no more than it may.
  int64_t Expected(const RequestDescription& request) const;

 private:
  static constexpr size_t kKinds = 24;    // powers of two of the maximum
  static constexpr size_t kSamples = 32;  // the last ones
  static constexpr size_t kLeastSamples = 4;
  // Of one kind of requests.
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
    uint64_t round = 0;  // in which it was there last
  };

  static size_t KindOf(int64_t max_tokens);

  std::vector<ByKind> of_tenants_;
  ByKind of_all_;
  absl::flat_hash_map<uint64_t, Decoding> decoding_;
  uint64_t round_ = 0;
};

}  // namespace retroinfer
