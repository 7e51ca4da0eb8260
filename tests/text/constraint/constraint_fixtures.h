// Vocabularies and texts that the tests of this folder share.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status/error_reason.h"
#include "tests/text/tokenizer/tokenizer_fixtures.h"
#include "text/constraint/constraint.h"
#include "text/constraint/constraint_compiler.h"
#include "text/constraint/constraint_spec.h"
#include "text/constraint/matcher.h"
#include "text/constraint/token_vocabulary.h"
#include "text/tokenizer/byte_tokenizer.h"

namespace retroinfer::constraint {

inline constexpr int32_t kByteEnd = 256;
inline constexpr int32_t kByteLogits = 259;

// A token for each byte; 256 ends a text, 257 and 258 are no tokens.
inline std::shared_ptr<const TokenVocabulary> ByteVocabulary() {
  static const auto* const kVocabulary = new std::shared_ptr<const TokenVocabulary>(
      TokenVocabulary::Create(*CreateByteTokenizer(), {kByteEnd}, kByteLogits));
  return *kVocabulary;
}

inline constexpr int32_t kBpeEnd = 500;
inline constexpr int32_t kBpeSpecial = 501;  // <|call|>
inline constexpr int32_t kBpeTag = 502;      // <tool>, which is no special token

// Bytes, some words of JSON over several of its parts, pieces of characters, and added tokens.
inline std::unique_ptr<Tokenizer> BpeTokenizer() {
  TokenizerSpec spec;
  spec.model =
      TinyModel({{"\"", ":"}, {"\"", ","}, {"a", "b"},   {"ab", "c"},     {"{", "\""}, {"}", "}"},
                 {"]", "}"},  {"1", "2"},  {"12", "3"},  {"t", "r"},      {"u", "e"},  {"tr", "ue"},
                 {"n", "a"},  {"m", "e"},  {"na", "me"}, {"name", "\":"}, {"\\", "n"}, {"\\", "\""},
                 {"\"", "}"}, {"<", "/"},  {"</", "t"},  {"-", "1"},      {"0", "0"},  {"00", "00"},
                 {"Ã", "©"},  {"a", "Ã"},  {"©", "\""},  {"Ċ", "Ġ"},      {"ĊĠ", "Ġ"}, {",", "Ġ"}});
  spec.added_tokens = {{.id = kBpeEnd, .content = "<|end|>", .special = true},
                       {.id = kBpeSpecial, .content = "<|call|>", .special = true},
                       {.id = kBpeTag, .content = "<tool>"}};
  auto tokenizer = Tokenizer::Create(spec, {});
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

inline std::shared_ptr<const TokenVocabulary> BpeVocabulary() {
  static const auto* const kVocabulary = new std::shared_ptr<const TokenVocabulary>(
      TokenVocabulary::Create(*BpeTokenizer(), {kBpeEnd}, 512));
  return *kVocabulary;
}

inline ConstraintSpec JsonSchema(std::string_view schema) {
  return {.form = ConstraintSpec::Form::kJsonSchema, .text = std::string(schema)};
}
inline ConstraintSpec Regex(std::string_view pattern) {
  return {.form = ConstraintSpec::Form::kRegex, .text = std::string(pattern)};
}
inline ConstraintSpec GrammarText(std::string_view text) {
  return {.form = ConstraintSpec::Form::kGrammar, .text = std::string(text)};
}
inline ConstraintSpec Choices(std::vector<std::string> choices) {
  return {.form = ConstraintSpec::Form::kChoices, .choices = std::move(choices)};
}

inline std::shared_ptr<const Constraint> MustCompile(
    const ConstraintSpec& spec,
    std::shared_ptr<const TokenVocabulary> vocabulary = ByteVocabulary(),
    const Limits& limits = {}) {
  auto constraint = ConstraintCompiler(std::move(vocabulary), limits).Compile(spec);
  EXPECT_TRUE(constraint.ok()) << constraint.status() << "\n" << spec.text;
  return constraint.ok() ? *std::move(constraint) : nullptr;
}

// Why a constraint is refused: its message. The reason is checked.
inline std::string Refusal(const ConstraintSpec& spec, const Limits& limits = {}) {
  const auto constraint = ConstraintCompiler(BpeVocabulary(), limits).Compile(spec);
  EXPECT_EQ(constraint.status().code(), absl::StatusCode::kInvalidArgument) << spec.text;
  const common::ErrorReason reason = common::ReasonOf(constraint.status());
  EXPECT_EQ(reason.reason, "INVALID_CONSTRAINT");
  EXPECT_TRUE(reason.metadata.contains("at"));
  return std::string(constraint.status().message());
}

// Whether `text` is one of the texts, byte by byte.
inline bool Accepts(const Constraint& constraint, std::string_view text) {
  Constraint::Place place = constraint.Start();
  return constraint.Advance(place, text) && place.can_end;
}
inline bool Accepts(const ConstraintSpec& spec, std::string_view text) {
  const auto constraint = MustCompile(spec);
  return constraint != nullptr && Accepts(*constraint, text);
}

inline bool IsSet(const std::vector<uint32_t>& mask, int32_t token) {
  return (mask[static_cast<size_t>(token) / 32] >> (static_cast<uint32_t>(token) % 32) & 1) != 0;
}

inline std::vector<uint32_t> MaskOf(Matcher& matcher, const TokenVocabulary& vocabulary) {
  std::vector<uint32_t> mask(vocabulary.mask_words(), 0xA5A5A5A5);
  matcher.Fill(mask);
  return mask;
}

}  // namespace retroinfer::constraint
