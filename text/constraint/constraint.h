// A compiled constraint: a set of texts, for the tokens of one model.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "text/constraint/lazy_automaton.h"
#include "text/constraint/limits.h"
#include "text/constraint/mask_cache.h"
#include "text/constraint/network.h"
#include "text/constraint/token_vocabulary.h"

namespace retroinfer::constraint {

// Matcher (text/constraint/matcher.h) is how to use one. What its places have in common, states and
// masks that were met before, is kept here within limits.automaton_bytes_max and mask_bytes_max: an
// automaton that has grown too large is left behind, and each place moves to a new one when it is
// used next.
//
// Threads: any, each place by one at a time.
class Constraint {
 public:
  // Where one text is.
  struct Place {
    std::shared_ptr<LazyAutomaton> automaton;
    LazyAutomaton::StateId state = LazyAutomaton::kDead;
    bool can_end = false;    // the text is one of the texts
    bool can_go_on = false;  // a byte can follow
  };

  Constraint(Network network, std::shared_ptr<const TokenVocabulary> vocabulary,
             const Limits& limits);
  Constraint(const Constraint&) = delete;
  Constraint& operator=(const Constraint&) = delete;

  // The place of an empty text.
  Place Start() const;
  // Moves `place` behind `bytes`, or returns false and leaves it.
  bool Advance(Place& place, std::string_view bytes) const;
  // Writes which tokens can follow; see Matcher::Fill.
  //
  // Returns: RESOURCE_EXHAUSTED, reason CONSTRAINT_TOO_COMPLEX, if there is no such token within
  //          limits.positions_max, or if the mask takes more than limits.fill_steps_max steps. The
  //          mask then has the end tokens alone.
  absl::Status Fill(Place& place, std::span<uint32_t> mask) const;

  const TokenVocabulary& vocabulary() const { return *vocabulary_; }
  // About what the constraint holds; waits for nobody.
  size_t memory_bytes() const { return memory_bytes_.load(std::memory_order_relaxed); }

 private:
  // Moves `place` to the current automaton, and leaves that behind if it has grown too large.
  void Update(Place& place) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void LeaveLargeAutomaton() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status MakeMask(Place& place, Mask& mask) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The set that nearly all tokens lead into from `state`; nothing if it is not plain.
  std::optional<TextSet> SetBehind(LazyAutomaton::StateId state) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Sets the tokens of `trie` that can follow. With `known`, the tokens of that set are set before:
  // those that cannot follow are cleared, and the walk stops where all of them can.
  absl::Status Walk(const TokenTrie& trie, std::optional<TextSet> known, Place& place,
                    Mask& mask) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Describe(Place& place) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void CountMemory() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Limits limits_;
  const std::shared_ptr<const TokenVocabulary> vocabulary_;
  const Network network_;

  mutable std::atomic<size_t> memory_bytes_ = 0;
  mutable absl::Mutex mutex_;
  // Every automaton of a place is used under the mutex, the ones left behind, too.
  mutable std::shared_ptr<LazyAutomaton> automaton_ ABSL_GUARDED_BY(mutex_);
  mutable MaskCache masks_ ABSL_GUARDED_BY(mutex_);  // by states of automaton_
};

}  // namespace retroinfer::constraint
