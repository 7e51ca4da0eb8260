// How long work takes on this device, learned from measured work. Seconds are the sum over the
// parts of Work of part times cost; costs are not negative and fitted to the median of the
// observations. Old observations are forgotten, but a part that no longer occurs keeps its last
// cost.
//
// Threads: one at a time.
#pragma once

#include <array>

#include "gpu_worker/scheduler/work.h"

namespace retroinfer {

class CostModel {
 public:
  CostModel();

  // The device took `seconds` for all of `work`. The first observation scales the guessed costs to
  // the speed of the device.
  // REQUIRES: seconds > 0.
  void Observe(const Work& work, double seconds);
  // Returns the expected seconds of the work.
  double Seconds(const Work& work) const;
  std::array<double, Work::kParts> SecondsByPart(const Work& work) const;
  // Nearly no round (an observation with a step and with passes) takes more than margin() times the
  // expected seconds. From 1 to kMostMargin.
  double margin() const { return margin_; }
  static constexpr double kMostMargin = 2.5;
  // Whether any work was observed. Before, Seconds() goes by guessed costs.
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
