// Kinds of conversations that people and agents have with a model, as lengths in tokens.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace retroinfer::bench {

// A turn is a prompt and its answer. The next prompt is this one, the answer, and what is new.
struct ConversationKind {
  std::string_view name;
  int64_t first_prompt = 0;  // tokens
  int64_t new_least = 0;     // tokens of a question or of a tool's result
  int64_t new_most = 0;      //
  int64_t thoughts = 0;      // generated before the answer; the next prompt leaves them out
  int64_t answer = 0;        // generated, and part of the next prompt
  int64_t turns = 0;         // the first one included

  // Of all turns: the longest prompt with what is generated behind it, and everything generated.
  int64_t longest() const;
  int64_t generated() const { return turns * (thoughts + answer); }
};

// The kinds, with lengths as they are times `scale`, in at most `most_turns` turns each.
//
// REQUIRES: scale > 0, most_turns >= 2.
std::vector<ConversationKind> ConversationKinds(double scale, int64_t most_turns);

}  // namespace retroinfer::bench
