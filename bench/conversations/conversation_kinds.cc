#include "bench/conversations/conversation_kinds.h"

#include <algorithm>
#include <cmath>

namespace retroinfer::bench {
namespace {

constexpr ConversationKind kKinds[] = {
    {.name = "document_short",
     .first_prompt = 20'000,
     .new_least = 40,
     .new_most = 40,
     .answer = 200,
     .turns = 8},
    {.name = "document_long",
     .first_prompt = 20'000,
     .new_least = 40,
     .new_most = 40,
     .answer = 3000,
     .turns = 6},
    {.name = "agent_small",
     .first_prompt = 7000,
     .new_least = 1000,
     .new_most = 1500,
     .answer = 300,
     .turns = 13},
    {.name = "agent_large",
     .first_prompt = 92'000,
     .new_least = 1000,
     .new_most = 1000,
     .answer = 300,
     .turns = 10},
    {.name = "chat",
     .first_prompt = 2000,
     .new_least = 80,
     .new_most = 80,
     .answer = 250,
     .turns = 11},
    {.name = "reasoning",
     .first_prompt = 8000,
     .new_least = 100,
     .new_most = 100,
     .thoughts = 2000,
     .answer = 200,
     .turns = 8},
};

}  // namespace

int64_t ConversationKind::longest() const {
  return first_prompt + (turns - 1) * (new_most + answer) + thoughts + answer;
}

std::vector<ConversationKind> ConversationKinds(double scale, int64_t most_turns) {
  const auto scaled = [scale](int64_t tokens) {
    const double exact = std::round(scale * static_cast<double>(tokens));
    return tokens == 0 ? 0 : std::max<int64_t>(1, static_cast<int64_t>(exact));
  };
  std::vector<ConversationKind> kinds;
  for (ConversationKind kind : kKinds) {
    kind.first_prompt = scaled(kind.first_prompt);
    kind.new_least = scaled(kind.new_least);
    kind.new_most = scaled(kind.new_most);
    kind.thoughts = scaled(kind.thoughts);
    kind.answer = scaled(kind.answer);
    kind.turns = std::min(kind.turns, most_turns);
    kinds.push_back(kind);
  }
  return kinds;
}

}  // namespace retroinfer::bench
