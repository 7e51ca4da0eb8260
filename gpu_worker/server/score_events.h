// What clients of Score get, made of the events of its call.
#pragma once

#include <cstdint>
#include <vector>

#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer {

// The events of one call, in their order.
//
// Threads: one at a time.
class ScoreEvents {
 public:
  // Turns an event whose index is that of a continuation into what Score sends.
  generation::v1::ScoreResponse Next(const generation::v1::GenerateResponse& event);

 private:
  std::vector<int64_t> told_;  // tokens of each continuation
};

}  // namespace retroinfer
