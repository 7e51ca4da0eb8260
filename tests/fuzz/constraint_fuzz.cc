// Constraints are written by strangers. The first byte of the input says which form the rest has.
// What compiles is used: each token of a mask is taken, and tokens that are no part of it are not.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "text/constraint/constraint_compiler.h"
#include "text/constraint/matcher.h"
#include "text/tokenizer/byte_tokenizer.h"

namespace {

using namespace retroinfer::constraint;  // NOLINT: one file

constexpr int32_t kEnd = 256;
constexpr int kSteps = 24;

void Require(bool condition) {
  if (!condition) std::abort();
}

const std::shared_ptr<const TokenVocabulary>& Vocabulary() {
  static const auto* const kVocabulary = new std::shared_ptr<const TokenVocabulary>(
      TokenVocabulary::Create(*retroinfer::CreateByteTokenizer(), {kEnd}, kEnd + 1));
  return *kVocabulary;
}

ConstraintSpec SpecOf(uint8_t form, std::string text) {
  ConstraintSpec spec;
  if ((form & 4) != 0) spec.thoughts = Thoughts{(form & 8) != 0 ? "<t>" : "", "</t>"};
  switch (form % 4) {
    case 0:
      spec.form = ConstraintSpec::Form::kJsonSchema;
      break;
    case 1:
      spec.form = ConstraintSpec::Form::kRegex;
      break;
    case 2:
      spec.form = ConstraintSpec::Form::kGrammar;
      break;
    default:
      spec.form = ConstraintSpec::Form::kChoices;
      spec.choices = {text, text.substr(text.size() / 2)};
      return spec;
  }
  spec.text = std::move(text);
  return spec;
}

// Draws a text by its masks, with the numbers of a small generator.
void Draw(const std::shared_ptr<const Constraint>& constraint, uint32_t seed) {
  Matcher matcher(constraint);
  std::vector<uint32_t> mask(Vocabulary()->mask_words());
  for (int step = 0; step < kSteps; ++step) {
    matcher.Fill(mask);
    if (!matcher.status().ok()) return;
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token <= kEnd; ++token) {
      const auto id = static_cast<uint32_t>(token);
      const bool is_set = (mask[id / 32] >> (id % 32) & 1) != 0;
      if (is_set) allowed.push_back(token);
      if (step < 3) Require(Matcher(matcher).Accept(token) == is_set);
    }
    Require(!allowed.empty());
    seed = seed * 1664525 + 1013904223;
    const int32_t token = allowed[(seed >> 8) % allowed.size()];
    Require(matcher.Accept(token));
    if (token == kEnd) return;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  // Small enough that no input takes long.
  const Limits limits = {.nodes_max = 20'000,
                         .schema_visits_max = 2'000,
                         .positions_max = 500,
                         .fill_steps_max = 200'000,
                         .automaton_bytes_max = size_t{1} << 20};
  const std::string text(reinterpret_cast<const char*>(data + 1), size - 1);
  ConstraintCompiler compiler(Vocabulary(), limits);
  const auto constraint = compiler.Compile(SpecOf(data[0], text));
  if (!constraint.ok()) {
    Require(constraint.status().code() == absl::StatusCode::kInvalidArgument);
    return 0;
  }
  for (uint32_t seed = 0; seed < 2; ++seed) Draw(*constraint, seed);
  return 0;
}
