// A mask is found by one walk over the trie of tokens, with the state behind each node of the path.
// Where the state is inside free text, a whole TextSet is taken at once, and the walk is over the
// tokens that are not in the set. Where most tokens lead into free text, as behind the beginning of
// a tag that may come to nothing, the set is taken at once, too, and the first walk only takes
// away.
#include "text/constraint/constraint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/check.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"

namespace retroinfer::constraint {
namespace {

// Nodes of the trie between two looks at what the walk has cost.
constexpr size_t kNodesUnchecked = 256;

void SetToken(int32_t id, Mask& mask) {
  mask[static_cast<size_t>(id) / 32] |= 1U << (static_cast<uint32_t>(id) % 32);
}

void ClearToken(int32_t id, Mask& mask) {
  mask[static_cast<size_t>(id) / 32] &= ~(1U << (static_cast<uint32_t>(id) % 32));
}

absl::Status TooComplex(std::string_view problem) {
  return common::WithReason(absl::ResourceExhaustedError(absl::StrCat(
                                "the constraint ", std::string(problem),
                                "; write it with fewer alternatives that begin alike")),
                            "CONSTRAINT_TOO_COMPLEX");
}

}  // namespace

Constraint::Constraint(Network network, std::shared_ptr<const TokenVocabulary> vocabulary,
                       const Limits& limits)
    : limits_(limits),
      vocabulary_(std::move(vocabulary)),
      network_(std::move(network)),
      automaton_(std::make_shared<LazyAutomaton>(network_, limits_)),
      masks_(limits.mask_bytes_max) {
  absl::MutexLock lock(&mutex_);
  CountMemory();
}

void Constraint::Describe(Place& place) const {
  place.can_end = place.automaton->CanEnd(place.state);
  place.can_go_on = place.automaton->CanGoOn(place.state);
}

Constraint::Place Constraint::Start() const {
  absl::MutexLock lock(&mutex_);
  Place place = {.automaton = automaton_, .state = automaton_->start()};
  Describe(place);
  return place;
}

void Constraint::LeaveLargeAutomaton() const {
  if (automaton_->memory_bytes() <= limits_.automaton_bytes_max) return;
  automaton_ = std::make_shared<LazyAutomaton>(network_, limits_);
  masks_.Clear();
}

void Constraint::Update(Place& place) const {
  LeaveLargeAutomaton();
  if (place.automaton == automaton_) return;
  place.state = automaton_->Import(*place.automaton, place.state);
  place.automaton = automaton_;
}

bool Constraint::Advance(Place& place, std::string_view bytes) const {
  absl::MutexLock lock(&mutex_);
  Update(place);
  LazyAutomaton::StateId state = place.state;
  for (const char byte : bytes) {
    state = automaton_->Step(state, static_cast<uint8_t>(byte));
    if (state == LazyAutomaton::kDead) return false;
  }
  place.state = state;
  Describe(place);
  return true;
}

absl::Status Constraint::Fill(Place& place, std::span<uint32_t> mask) const {
  RI_CHECK(mask.size() == vocabulary_->mask_words());
  std::shared_ptr<const Mask> known;
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    Update(place);
    known = masks_.Find(place.state);
    if (known == nullptr) {
      auto made = std::make_shared<Mask>();
      status = MakeMask(place, *made);
      known = std::move(made);
      if (status.ok()) masks_.Insert(place.state, known);
      CountMemory();
    }
  }
  std::copy(known->begin(), known->end(), mask.begin());
  return status;
}

std::optional<TextSet> Constraint::SetBehind(LazyAutomaton::StateId state) const {
  TextSetBits sets = (1U << kNumTextSets) - 1;
  for (const char byte : {'e', 'T', ' ', '1'}) {  // many tokens begin with them
    sets &= automaton_->text_sets(automaton_->Step(state, static_cast<uint8_t>(byte)));
  }
  for (size_t i = 0; i < kNumTextSets; ++i) {
    if ((sets >> i & 1) != 0) return static_cast<TextSet>(i);
  }
  return std::nullopt;
}

absl::Status Constraint::MakeMask(Place& place, Mask& mask) const {
  const TextSetBits text_sets = automaton_->text_sets(place.state);
  const TokenTrie* trie = &vocabulary_->trie();
  mask.assign(vocabulary_->mask_words(), 0);
  absl::Status status;
  if (text_sets == 0) {
    if (const std::optional<TextSet> set = SetBehind(place.state)) {
      mask = vocabulary_->MaskOf(*set);
      status = Walk(*trie, set, place, mask);
      trie = &vocabulary_->TrieWithout(*set);
    }
  }
  for (size_t i = 0; i < kNumTextSets; ++i) {
    if ((text_sets >> i & 1) == 0) continue;
    const auto set = static_cast<TextSet>(i);
    const Mask& members = vocabulary_->MaskOf(set);
    for (size_t word = 0; word < mask.size(); ++word) mask[word] |= members[word];
    const TokenTrie& rest = vocabulary_->TrieWithout(set);
    if (rest.num_nodes() < trie->num_nodes()) trie = &rest;
  }
  if (status.ok()) status = Walk(*trie, std::nullopt, place, mask);
  const bool is_empty = std::all_of(mask.begin(), mask.end(), [](uint32_t w) { return w == 0; });
  if (status.ok() && is_empty && !place.can_end) {
    status = TooComplex(absl::StrCat("has no token that can follow with at most ",
                                     limits_.positions_max, " readings of the text at once"));
  }
  if (!status.ok()) mask.assign(mask.size(), 0);
  if (place.can_end || !status.ok()) {
    for (const int32_t id : vocabulary_->end_token_ids()) SetToken(id, mask);
  }
  return status;
}

absl::Status Constraint::Walk(const TokenTrie& trie, std::optional<TextSet> known, Place& place,
                              Mask& mask) const {
  const TextSetBits known_bit = known.has_value() ? BitOf(*known) : TextSetBits{0};
  std::vector<LazyAutomaton::StateId> states(trie.depth_max() + 1);
  states[0] = place.state;
  size_t steps = 0;  // of automata that were left behind
  size_t steps_before = automaton_->steps();
  size_t unchecked = 0;
  for (size_t i = 0; i < trie.num_nodes();) {
    const TokenTrie::Node& node = trie.node(i);
    if (++unchecked == kNodesUnchecked) {
      unchecked = 0;
      if (steps + automaton_->steps() - steps_before > limits_.fill_steps_max) {
        return TooComplex(absl::StrCat("needs more than ", limits_.fill_steps_max,
                                       " steps to find the tokens that can follow"));
      }
      const std::shared_ptr<LazyAutomaton> before = automaton_;
      LeaveLargeAutomaton();
      if (automaton_ != before) {
        steps += before->steps() - steps_before;
        for (size_t depth = 0; depth < node.depth; ++depth) {
          states[depth] = automaton_->Import(*before, states[depth]);
        }
        place.automaton = automaton_;
        place.state = states[0];
        steps_before = automaton_->steps();
      }
    }
    const LazyAutomaton::StateId state = automaton_->Step(states[node.depth - 1U], node.byte);
    if (state == LazyAutomaton::kDead) {
      if (known.has_value()) {
        for (const int32_t id : trie.TokensBelow(i)) ClearToken(id, mask);
      }
      i = node.behind;
      continue;
    }
    if ((automaton_->text_sets(state) & known_bit) != 0) {
      i = node.behind;
      continue;
    }
    states[node.depth] = state;
    for (const int32_t id : trie.TokensOf(i)) SetToken(id, mask);
    ++i;
  }
  return absl::OkStatus();
}

void Constraint::CountMemory() const {
  memory_bytes_.store(network_.memory_bytes() + automaton_->memory_bytes() + masks_.memory_bytes(),
                      std::memory_order_relaxed);
}

}  // namespace retroinfer::constraint
