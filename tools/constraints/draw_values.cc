// Draws JSON values at random by the masks of schemas, for tools/constraints/check_values.py: reads
// a schema a line from standard input, writes for each a line {"schema": ..., "values": [...]} with
// the texts as strings, or {"schema": ..., "refused": "why"}.
//
//   draw_values [values a schema]
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "text/constraint/constraint_compiler.h"
#include "text/constraint/matcher.h"
#include "text/tokenizer/byte_tokenizer.h"

namespace retroinfer::constraint {
namespace {

constexpr int32_t kEnd = 256;
constexpr int kStepsMax = 20'000;

// After `free_steps`, takes what ends strings, lists and objects where that is allowed.
std::string DrawText(const std::shared_ptr<const Constraint>& constraint, std::mt19937& random,
                     int free_steps) {
  Matcher matcher(constraint);
  std::vector<uint32_t> mask(constraint->vocabulary().mask_words());
  std::string text;
  for (int step = 0; step < kStepsMax; ++step) {
    matcher.Fill(mask);
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token <= kEnd; ++token) {
      const auto id = static_cast<uint32_t>(token);
      if ((mask[id / 32] >> (id % 32) & 1) != 0) allowed.push_back(token);
    }
    if (allowed.empty()) return "an empty mask behind: " + text;
    int32_t token = allowed[random() % allowed.size()];
    if (step > free_steps || random() % 8 == 0) {
      for (const int32_t end : {'e', '0', ']', '}', '"', static_cast<int>(kEnd)}) {
        for (const int32_t candidate : allowed) token = candidate == end ? end : token;
      }
    }
    if (token == kEnd) return text;
    if (!matcher.Accept(token)) return "a token of the mask is not taken behind: " + text;
    text.push_back(static_cast<char>(token));
  }
  return "no end: " + text;
}

int Run(int num_values) {
  const auto vocabulary = TokenVocabulary::Create(*CreateByteTokenizer(), {kEnd}, kEnd + 1);
  ConstraintCompiler compiler(vocabulary);
  std::mt19937 random(1);
  for (std::string line; std::getline(std::cin, line);) {
    nlohmann::ordered_json result = {{"schema", nlohmann::ordered_json::parse(line)}};
    const auto constraint =
        compiler.Compile({.form = ConstraintSpec::Form::kJsonSchema, .text = line});
    if (constraint.ok()) {
      for (int i = 0; i < num_values; ++i) {
        result["values"].push_back(DrawText(*constraint, random, i % 4 * 40));
      }
    } else {
      result["refused"] = std::string(constraint.status().message());
    }
    std::cout << result.dump() << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace retroinfer::constraint

int main(int argc, char** argv) {
  return retroinfer::constraint::Run(argc > 1 ? std::atoi(argv[1]) : 30);
}
