#include "text/constraint/lazy_automaton.h"

#include <algorithm>

#include "absl/hash/hash.h"

namespace retroinfer::constraint {

using Kind = Network::Kind;

void LazyAutomaton::Closure::Clear() {
  open.clear();
  seen.clear();
  reads.clear();
  text_sets = 0;
  can_end = false;
}

LazyAutomaton::LazyAutomaton(const Network& network, const Limits& limits)
    : network_(network), depth_max_(limits.stack_depth_max), positions_max_(limits.positions_max) {
  states_.push_back({0, 0});
  frames_.push_back({{0, 0}, 0});
  Visit({network.start(), 0});
  start_ = Close();
}

void LazyAutomaton::Visit(Position position) {
  // What cannot end within the depth that is left is no way to the end of a text.
  if (frames_[position.stack].depth + network_.node(position.node).need > depth_max_) return;
  if (closure_.seen.insert(position).second) closure_.open.push_back(position);
}

LazyAutomaton::StackId LazyAutomaton::Push(Position below) {
  const auto [known, is_new] = stacks_.try_emplace(below, static_cast<StackId>(frames_.size()));
  if (is_new) frames_.push_back({below, frames_[below.stack].depth + 1});
  return known->second;
}

LazyAutomaton::StateId LazyAutomaton::Close() {
  bool fits = true;
  while (!closure_.open.empty()) {
    ++steps_;
    const Position position = closure_.open.back();
    closure_.open.pop_back();
    if (closure_.seen.size() > positions_max_) {
      fits = false;
      break;
    }
    const Network::Node& node = network_.node(position.node);
    closure_.text_sets |= node.text_sets;
    switch (node.kind) {
      case Kind::kRead:
        if (node.count > 0) closure_.reads.push_back(position);
        break;
      case Kind::kSplit:
        for (const NodeId target : network_.TargetsOf(node)) Visit({target, position.stack});
        break;
      case Kind::kCall: {
        const bool is_last = network_.node(node.next()).kind == Kind::kReturn;
        Visit({node.entry(), is_last ? position.stack : Push({node.next(), position.stack})});
        break;
      }
      case Kind::kReturn:
        if (position.stack == 0) {
          closure_.can_end = true;
        } else {
          Visit(frames_[position.stack].below);
        }
        break;
    }
  }
  const StateId state = fits ? Intern() : kDead;
  closure_.Clear();
  return state;
}

LazyAutomaton::StateId LazyAutomaton::Intern() {
  std::vector<Position>& reads = closure_.reads;
  if (reads.empty() && !closure_.can_end) return kDead;
  std::sort(reads.begin(), reads.end());
  std::vector<StateId>& candidates =
      states_by_hash_[absl::HashOf(reads, closure_.can_end, closure_.text_sets)];
  for (const StateId id : candidates) {
    const State& state = states_[id];
    if (state.can_end == closure_.can_end && state.text_sets == closure_.text_sets &&
        std::equal(reads.begin(), reads.end(), positions_.begin() + state.begin,
                   positions_.begin() + state.end)) {
      return id;
    }
  }
  const auto id = static_cast<StateId>(states_.size());
  const auto begin = static_cast<uint32_t>(positions_.size());
  positions_.insert(positions_.end(), reads.begin(), reads.end());
  states_.push_back({.begin = begin,
                     .end = static_cast<uint32_t>(positions_.size()),
                     .text_sets = closure_.text_sets,
                     .can_end = closure_.can_end});
  candidates.push_back(id);
  return id;
}

LazyAutomaton::StateId LazyAutomaton::FindStep(StateId state, uint8_t byte) {
  if (state == kDead) return kDead;
  for (uint32_t i = states_[state].begin; i < states_[state].end; ++i) {
    ++steps_;
    const Position position = positions_[i];
    for (const Network::Edge& edge : network_.EdgesOf(network_.node(position.node))) {
      if (edge.first <= byte && byte <= edge.last) Visit({edge.target, position.stack});
    }
  }
  const StateId next = closure_.open.empty() ? kDead : Close();
  if (states_[state].row == kNoRow) {
    states_[state].row = static_cast<uint32_t>(transitions_.size());
    transitions_.resize(transitions_.size() + network_.num_classes(), kUnknown);
  }
  transitions_[states_[state].row + network_.ClassOf(byte)] = next;
  return next;
}

LazyAutomaton::StackId LazyAutomaton::ImportStack(const LazyAutomaton& other, StackId stack,
                                                  absl::flat_hash_map<StackId, StackId>& known) {
  std::vector<StackId> path;
  while (stack != 0 && !known.contains(stack)) {
    path.push_back(stack);
    stack = other.frames_[stack].below.stack;
  }
  StackId own = stack == 0 ? 0 : known.at(stack);
  for (size_t i = path.size(); i > 0; --i) {
    own = Push({other.frames_[path[i - 1]].below.node, own});
    known.emplace(path[i - 1], own);
  }
  return own;
}

LazyAutomaton::StateId LazyAutomaton::Import(const LazyAutomaton& other, StateId state) {
  if (state == kDead) return kDead;
  const State& from = other.states_[state];
  absl::flat_hash_map<StackId, StackId> known;
  for (uint32_t i = from.begin; i < from.end; ++i) {
    const Position& position = other.positions_[i];
    closure_.reads.push_back({position.node, ImportStack(other, position.stack, known)});
  }
  closure_.text_sets = from.text_sets;
  closure_.can_end = from.can_end;
  const StateId own = Intern();
  closure_.Clear();
  return own;
}

size_t LazyAutomaton::memory_bytes() const {
  // A hash map has a control byte beside each slot, and is between half and 7/8 full.
  constexpr size_t kBucketBytes = sizeof(uint64_t) + sizeof(std::vector<StateId>) + 1;
  constexpr size_t kStackBytes = sizeof(Position) + sizeof(StackId) + 1;
  return states_.capacity() * sizeof(State) + positions_.capacity() * sizeof(Position) +
         transitions_.capacity() * sizeof(StateId) + frames_.capacity() * sizeof(Frame) +
         stacks_.capacity() * kStackBytes + states_by_hash_.capacity() * kBucketBytes +
         states_.size() * sizeof(StateId);
}

}  // namespace retroinfer::constraint
