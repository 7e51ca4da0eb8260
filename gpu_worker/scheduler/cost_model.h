// How long work takes on this device, learned from what it took: seconds = the sum over the parts
// of Work of a cost each, none negative, fitted to the median of what was seen. What is old
// is forgotten, but a part that does not occur any more keeps the cost that it had last.
//
// Threads: one at a time.
#pragma once

#include <array>

#include "gpu_worker/scheduler/work.h"

namespace retroinfer {

class CostModel {
 public:
  CostModel();

  // The device took `seconds` for `work`, all of it. The first observation tells how fast the
  // device is at all: until then the costs are a guess.
  // REQUIRES: seconds > 0.
  void Observe(const Work& work, double seconds);
  double Seconds(const Work& work) const;
  std::array<double, Work::kParts> SecondsByPart(const Work& work) const;
  // How many times what was expected rounds take (observations with a step and with passes): nearly
  // none takes more. At least 1, at most kMostMargin.
  double margin() const { return margin_; }
  static constexpr double kMostMargin = 2.5;
  // Whether anything was observed.
  bool knows_speed() const { return knows_speed_; }

 private:
  static constexpr size_t kParts = Work::kParts;

  void Solve();
  void UpdateMargin(const Work& work, double seconds);

  std::array<double, kParts> costs_;  // seconds
  // Sums over observations, weighted by age: products of parts, and parts, over the time taken.
  std::array<std::array<double, kParts>, kParts> products_ = {};
  std::array<double, kParts> sums_ = {};
  bool knows_speed_ = false;
  double margin_ = 1;
};

}  // namespace retroinfer
