// What a draft model has drafted for one request, and how often it is right.
//
// A draft of a model costs steps of the model, so that none is made on trial where none is expected
// to pay. What was learned fades with the tokens that come without a draft: a model that was wrong
// is asked again some hundreds of tokens later.
//
// Threads: the engine's thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace retroinfer {

// What requests tell each other of the model.
struct DraftModelRecord {
  // The chance of a model that nothing is known of.
  static constexpr double kFirstChance = 0.6;

  double chance = kFirstChance;  // where a new request begins
  // Tokens that requests have got since the model was asked last: very many, if it never was.
  int64_t untried = int64_t{1} << 20;
};

class ModelDrafting {
 public:
  // `of_all` outlives the object.
  explicit ModelDrafting(DraftModelRecord& of_all);

  // Takes the draft of what comes next, in place of the one before.
  void Take(std::vector<int32_t> draft);
  void Clear() { draft_.clear(); }
  // A token was drawn.
  void Append(int32_t token);

  std::span<const int32_t> draft() const { return draft_; }
  // The chance that a token of the next draft is right if those before it are.
  double chance() const { return chance_; }

 private:
  DraftModelRecord& of_all_;
  double chance_;
  std::vector<int32_t> draft_;
  size_t num_right_ = 0;  // leading tokens of the draft that were drawn
  bool is_over_ = false;  // another token was drawn than the next one of the draft
};

}  // namespace retroinfer
