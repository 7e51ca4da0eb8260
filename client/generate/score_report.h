// What the scores of a text say about the policies that it was scored under.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace retroinfer::client {

// One token under one policy.
struct TokenScore {
  int64_t context = 0;  // tokens before it that its policy could see
  double logprob = 0;
  int32_t greedy = 0;  // the token that greedy would have taken
  bool is_greedy = false;
};

struct PolicyScores {
  std::string policy;
  std::vector<TokenScore> tokens;  // the same tokens, in the same order, for every policy
};

// How a text was cut.
struct ScorePlan {
  std::string file;
  int64_t tokens = 0;   // of the text
  int64_t context = 0;  // before the first one that is scored
  int64_t window = 0;   // tokens of context and continuation together, at most
  int64_t stride = 0;   // tokens of a continuation
};

// A call that scores tokens [first, end) behind [begin, first).
struct ScoreWindow {
  int64_t begin = 0, first = 0, end = 0;
  friend bool operator==(const ScoreWindow&, const ScoreWindow&) = default;
};

// Every token from plan.context on is in exactly one continuation, in order; none sees more than
// plan.window tokens.
// REQUIRES: 1 <= context < tokens, 1 <= stride < window.
std::vector<ScoreWindow> PlanWindows(const ScorePlan& plan);

// A table for people: perplexity by policy and by the length of the context, and how often two
// policies agree on the likeliest token.
// REQUIRES: at least one policy, all with as many tokens, at least one.
std::string ScoreTable(const ScorePlan& plan, const std::vector<PolicyScores>& policies);
// The same as a JSON object. A perplexity that is not finite is null.
std::string ScoreJson(const ScorePlan& plan, const std::vector<PolicyScores>& policies);

}  // namespace retroinfer::client
