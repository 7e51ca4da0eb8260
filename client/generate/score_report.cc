#include "client/generate/score_report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/command/number_format.h"

namespace retroinfer::client {
namespace {

// Lengths of context that are reported together: [from, to).
struct Range {
  int64_t from = 0, to = 0;
};

// From each power of two to the next, 1024 and less together.
std::vector<Range> RangesOf(const std::vector<TokenScore>& tokens) {
  constexpr int64_t kShortest = 1024;
  int64_t longest = 0;
  for (const TokenScore& token : tokens) longest = std::max(longest, token.context);
  std::vector<Range> ranges = {{0, kShortest}};
  while (ranges.back().to <= longest) ranges.push_back({ranges.back().to, 2 * ranges.back().to});
  return ranges;
}

struct Sum {
  int64_t tokens = 0;
  double nll = 0;  // of all tokens
  int64_t greedy = 0;
  double perplexity() const { return std::exp(nll / static_cast<double>(tokens)); }
};

Sum SumOf(const std::vector<TokenScore>& tokens, const Range& range) {
  Sum sum;
  for (const TokenScore& token : tokens) {
    if (token.context < range.from || token.context >= range.to) continue;
    ++sum.tokens;
    sum.nll -= token.logprob;
    sum.greedy += token.is_greedy ? 1 : 0;
  }
  return sum;
}

struct Agreement {
  int64_t tokens = 0;
  int64_t same = 0;       // likeliest tokens
  double difference = 0;  // of log-probabilities, absolute, of all tokens
  double same_share() const { return static_cast<double>(same) / static_cast<double>(tokens); }
  double mean_difference() const { return difference / static_cast<double>(tokens); }
};

Agreement AgreementOf(const PolicyScores& a, const PolicyScores& b, const Range& range) {
  Agreement agreement;
  for (size_t i = 0; i < a.tokens.size(); ++i) {
    if (a.tokens[i].context < range.from || a.tokens[i].context >= range.to) continue;
    ++agreement.tokens;
    agreement.same += a.tokens[i].greedy == b.tokens[i].greedy ? 1 : 0;
    const double difference = std::abs(a.tokens[i].logprob - b.tokens[i].logprob);
    // Of two tokens that are impossible under both, nothing.
    agreement.difference += std::isnan(difference) ? 0 : difference;
  }
  return agreement;
}

constexpr Range kAll = {0, INT64_MAX};

std::string Line(const std::string& name, const std::vector<PolicyScores>& policies,
                 const Range& range) {
  const Sum first = SumOf(policies.front().tokens, range);
  std::string line = absl::StrFormat("%-20s %9s", name, WithThousands(first.tokens));
  for (const PolicyScores& policy : policies) {
    absl::StrAppendFormat(&line, " %12.4f", SumOf(policy.tokens, range).perplexity());
  }
  for (size_t i = 1; i < policies.size(); ++i) {
    const Agreement agreement = AgreementOf(policies.front(), policies[i], range);
    absl::StrAppendFormat(&line, " %11.2f%% %12.4f", 100 * agreement.same_share(),
                          agreement.mean_difference());
  }
  return line + "\n";
}

nlohmann::json Finite(double value) {
  return std::isfinite(value) ? nlohmann::json(value) : nlohmann::json();
}

nlohmann::json SumJson(const Sum& sum) {
  const auto tokens = static_cast<double>(sum.tokens);
  return {{"tokens", sum.tokens},
          {"perplexity", Finite(sum.perplexity())},
          {"mean_logprob", Finite(-sum.nll / tokens)},
          {"greedy_share", static_cast<double>(sum.greedy) / tokens}};
}

nlohmann::json AgreementJson(const Agreement& agreement) {
  return {{"tokens", agreement.tokens},
          {"same_top1_share", agreement.same_share()},
          {"mean_logprob_difference", Finite(agreement.mean_difference())}};
}

// `json_of(range)` of all tokens, and by length of the context.
template <typename JsonOf>
nlohmann::json WithContexts(const std::vector<TokenScore>& tokens, const JsonOf& json_of) {
  nlohmann::json json = json_of(kAll);
  nlohmann::json& by_context = json["by_context"] = nlohmann::json::array();
  for (const Range& range : RangesOf(tokens)) {
    if (SumOf(tokens, range).tokens == 0) continue;
    nlohmann::json& entry = by_context.emplace_back(json_of(range));
    entry["context_from"] = range.from;
    entry["context_to"] = range.to;
  }
  return json;
}

}  // namespace

std::vector<ScoreWindow> PlanWindows(const ScorePlan& plan) {
  std::vector<ScoreWindow> windows;
  for (int64_t first = plan.context; first < plan.tokens;) {
    const int64_t end = std::min(first + plan.stride, plan.tokens);
    windows.push_back({std::max<int64_t>(0, end - plan.window), first, end});
    first = end;
  }
  return windows;
}

std::string ScoreTable(const ScorePlan& plan, const std::vector<PolicyScores>& policies) {
  const std::vector<TokenScore>& tokens = policies.front().tokens;
  std::string table =
      absl::StrFormat("%s: %s tokens, %s scored, %s at a time in windows of %s\n\n%-20s %9s",
                      plan.file, WithThousands(plan.tokens), WithThousands(std::ssize(tokens)),
                      WithThousands(plan.stride), WithThousands(plan.window), "context", "tokens");
  for (const PolicyScores& policy : policies) {
    absl::StrAppendFormat(&table, " %12s", absl::StrCat("ppl ", policy.policy));
  }
  for (size_t i = 1; i < policies.size(); ++i) {
    absl::StrAppendFormat(&table, " %12s %12s", absl::StrCat("same top-1"), "|d logprob|");
  }
  table += "\n";
  for (const Range& range : RangesOf(tokens)) {
    if (SumOf(tokens, range).tokens == 0) continue;
    table += Line(absl::StrCat(WithThousands(range.from), " to ", WithThousands(range.to - 1)),
                  policies, range);
  }
  return table + Line("all", policies, kAll);
}

std::string ScoreJson(const ScorePlan& plan, const std::vector<PolicyScores>& policies) {
  nlohmann::json json = {{"file", plan.file},       {"tokens", plan.tokens},
                         {"context", plan.context}, {"window", plan.window},
                         {"stride", plan.stride},   {"scored", policies.front().tokens.size()}};
  for (const PolicyScores& policy : policies) {
    nlohmann::json entry = WithContexts(
        policy.tokens, [&](const Range& range) { return SumJson(SumOf(policy.tokens, range)); });
    entry["policy"] = policy.policy;
    json["policies"].push_back(std::move(entry));
  }
  json["agreements"] = nlohmann::json::array();
  for (size_t i = 1; i < policies.size(); ++i) {
    nlohmann::json entry = WithContexts(policies[i].tokens, [&](const Range& range) {
      return AgreementJson(AgreementOf(policies.front(), policies[i], range));
    });
    entry["policies"] = {policies.front().policy, policies[i].policy};
    json["agreements"].push_back(std::move(entry));
  }
  // A file's name may be no UTF-8.
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace retroinfer::client
