// A deterministic automaton over bytes that is built from a network where a text goes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "text/constraint/limits.h"
#include "text/constraint/network.h"

namespace retroinfer::constraint {

// A state stands for a set of positions: nodes that read a byte, each with the calls that it is in.
// States and stacks are stored once, and stay until the automaton goes.
//
// Threads: one at a time.
class LazyAutomaton {
 public:
  using StateId = uint32_t;
  static constexpr StateId kDead = 0;  // no text goes on from here

  // REQUIRES: `network` outlives the automaton.
  LazyAutomaton(const Network& network, const Limits& limits);
  LazyAutomaton(const LazyAutomaton&) = delete;
  LazyAutomaton& operator=(const LazyAutomaton&) = delete;

  StateId start() const { return start_; }

  // The state behind `byte`; kDead if no text of the constraint goes on with that byte, or if the
  // state would have more than limits.positions_max positions.
  //
  // Cost: a look-up, but for the first time.
  StateId Step(StateId state, uint8_t byte) {
    const uint32_t row = states_[state].row;
    if (row != kNoRow) {
      const StateId known = transitions_[row + network_.ClassOf(byte)];
      if (known != kUnknown) return known;
    }
    return FindStep(state, byte);
  }

  // Whether the text may end here, and whether a byte may follow.
  bool CanEnd(StateId state) const { return states_[state].can_end; }
  bool CanGoOn(StateId state) const { return states_[state].end > states_[state].begin; }
  // Sets whose tokens are all allowed here.
  TextSetBits text_sets(StateId state) const { return states_[state].text_sets; }

  // Returns the state of this automaton that equals `state` of another one of the same network.
  StateId Import(const LazyAutomaton& other, StateId state);

  size_t memory_bytes() const;
  // Positions that were visited since construction.
  size_t steps() const { return steps_; }

 private:
  using StackId = uint32_t;  // 0 is the empty stack
  static constexpr StateId kUnknown = UINT32_MAX;
  static constexpr uint32_t kNoRow = UINT32_MAX;

  struct Position {
    NodeId node;
    StackId stack;
    bool operator==(const Position&) const = default;
    auto operator<=>(const Position&) const = default;
    template <typename H>
    friend H AbslHashValue(H hash, const Position& position) {
      return H::combine(std::move(hash), position.node, position.stack);
    }
  };
  struct Frame {
    Position below;  // where the call goes on
    uint32_t depth;
  };
  struct State {
    uint32_t begin;  // into positions_
    uint32_t end;
    uint32_t row = kNoRow;  // into transitions_
    TextSetBits text_sets = 0;
    bool can_end = false;
  };
  // The set that is being made.
  struct Closure {
    std::vector<Position> open;
    absl::flat_hash_set<Position> seen;
    std::vector<Position> reads;
    TextSetBits text_sets = 0;
    bool can_end = false;
    void Clear();
  };

  StateId FindStep(StateId state, uint8_t byte);
  void Visit(Position position);
  StackId Push(Position below);
  // The state of the positions that closure_ reaches; closure_ is empty afterwards.
  StateId Close();
  StateId Intern();
  StackId ImportStack(const LazyAutomaton& other, StackId stack,
                      absl::flat_hash_map<StackId, StackId>& known);

  const Network& network_;
  const size_t depth_max_;
  const size_t positions_max_;
  std::vector<State> states_;
  std::vector<Position> positions_;
  std::vector<StateId> transitions_;  // rows of network_.num_classes()
  std::vector<Frame> frames_;         // by StackId
  absl::flat_hash_map<Position, StackId> stacks_;
  absl::flat_hash_map<uint64_t, std::vector<StateId>> states_by_hash_;
  Closure closure_;
  StateId start_ = kDead;
  size_t steps_ = 0;
};

}  // namespace retroinfer::constraint
