// The texts of expressions and grammars, for the tests of what makes them.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "tests/text/constraint/naive_matcher.h"
#include "text/constraint/expression.h"
#include "text/constraint/network_builder.h"

namespace retroinfer::constraint {

inline Network NetworkOf(const Grammar& grammar, const Limits& limits = {}) {
  auto network = BuildNetwork(grammar, 16, limits);
  EXPECT_TRUE(network.ok()) << network.status();
  return network.ok() ? *std::move(network) : Network({{}}, {}, {}, 0);
}

inline Network NetworkOf(const ExpressionPtr& expression) {
  Grammar grammar;
  grammar.root = grammar.Add("root", expression);
  return NetworkOf(grammar);
}

inline bool Has(const Network& network, std::string_view text) {
  NaiveMatcher matcher(network);
  return matcher.Advance(text) && matcher.CanEnd();
}
inline bool Has(const ExpressionPtr& expression, std::string_view text) {
  return Has(NetworkOf(expression), text);
}

inline void AppendTexts(const NaiveMatcher& matcher, const std::string& text, size_t length_max,
                        std::vector<std::string>& texts) {
  if (matcher.CanEnd()) texts.push_back(text);
  if (text.size() == length_max) return;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string one(1, static_cast<char>(byte));
    NaiveMatcher next = matcher;
    if (next.Advance(one)) AppendTexts(next, text + one, length_max, texts);
  }
}

// All texts of at most `length_max` bytes, in the order of their bytes.
inline std::vector<std::string> TextsOf(const Network& network, size_t length_max = 8) {
  std::vector<std::string> texts;
  AppendTexts(NaiveMatcher(network), "", length_max, texts);
  return texts;
}
inline std::vector<std::string> TextsOf(const ExpressionPtr& expression, size_t length_max = 8) {
  return TextsOf(NetworkOf(expression), length_max);
}

}  // namespace retroinfer::constraint
