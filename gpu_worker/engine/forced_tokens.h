// Where a request that measures continuations is: what its steps are fed, and what they are told
// instead of drawing.
//
// Threads: the engine's thread.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "common/log/check.h"
#include "gpu_worker/engine/generation.h"

namespace retroinfer {

// The continuations come one after the other. The first token of each follows the prompt itself, so
// that all of these are measured where the prompt ends; a step is fed a token and measures the next
// one.
class ForcedTokens {
 public:
  // `continuations` must outlive it; neither it nor any of them is empty.
  explicit ForcedTokens(const std::vector<std::vector<int32_t>>& continuations)
      : continuations_(&continuations) {}

  int32_t continuation() const { return static_cast<int32_t>(current_); }
  // Tokens of the current continuation that are not measured.
  int64_t left() const { return std::ssize(Current()) - measured_; }
  // Counts a token that was measured.
  void Count() { ++measured_; }
  // Begins the next continuation; returns false if there is none.
  bool Next() {
    measured_ = 0;
    return ++current_ < continuations_->size();
  }

  // For row `ahead` of the sequence's rows in the next step.
  // REQUIRES: a token of the current continuation is measured; ahead < left().
  int32_t Fed(int64_t ahead) const { return At(measured_ - 1 + ahead); }
  int32_t Told(int64_t ahead) const { return At(measured_ + ahead); }

  // The tokens that the continuations begin with, in order.
  std::vector<int32_t> Firsts() const {
    std::vector<int32_t> firsts;
    for (const std::vector<int32_t>& one : *continuations_) firsts.push_back(one.front());
    return firsts;
  }
  // Takes what was measured of Firsts().
  void SetFirsts(std::vector<OutputToken> measured) { firsts_ = std::move(measured); }
  // What was measured of the first token of the current continuation.
  const OutputToken& First() const { return firsts_[current_]; }

 private:
  const std::vector<int32_t>& Current() const { return (*continuations_)[current_]; }
  int32_t At(int64_t index) const {
    RI_CHECK(index >= 0 && index < std::ssize(Current()));
    return Current()[static_cast<size_t>(index)];
  }

  const std::vector<std::vector<int32_t>>* continuations_;
  size_t current_ = 0;
  int64_t measured_ = 0;
  std::vector<OutputToken> firsts_;
};

}  // namespace retroinfer
