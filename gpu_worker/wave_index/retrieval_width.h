// How much wider than asked for the retrieval zone of a sequence is, so that what its decode steps
// leave to estimates stays below a limit (decision 0062).
//
// The same factor for all layers and heads: zones that grow head by head spend their bytes on heads
// that look everywhere, whose estimates are good.
#pragma once

#include <algorithm>

namespace retroinfer {

class RetrievalWidth {
 public:
  // Times the request's own zone, at most.
  static constexpr double kMost = 4;

  // From 1 to kMost.
  double factor() const { return factor_; }

  // After a step with the present factor: `unseen` is the share of mass that it left to estimates,
  // `limit`, in (0, 1), what it may be. The zone narrows slowly and widens fast, and aims a little
  // below the limit, since steps differ.
  void Follow(double unseen, double limit) {
    constexpr double kAim = 0.9, kNarrowing = 0.9, kWidening = 1.25;
    const double change = std::clamp(unseen / (kAim * limit), kNarrowing, kWidening);
    factor_ = std::clamp(factor_ * change, 1.0, kMost);
  }

 private:
  double factor_ = 1;
};

}  // namespace retroinfer
