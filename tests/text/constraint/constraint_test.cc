// Texts that are drawn at random by the masks: each mask is compared with a naive matcher, and each
// finished text with the constraint, read by other means.
#include "text/constraint/constraint.h"

#include <gtest/gtest.h>

#include <random>
#include <regex>

#include "tests/text/constraint/constraint_fixtures.h"
#include "tests/text/constraint/naive_matcher.h"
#include "tests/text/constraint/schema_check.h"
#include "text/constraint/network_builder.h"
#include "text/constraint/spec_grammar.h"
#include "text/tokenizer/utf8.h"

namespace retroinfer::constraint {
namespace {

constexpr int kStepsMax = 600;

// Draws tokens until the text ends; after `free_steps` those that lead to an end soon.
class Drawing {
 public:
  Drawing(std::shared_ptr<const Constraint> constraint, uint32_t seed, int free_steps)
      : vocabulary_(constraint->vocabulary()),
        matcher_(std::move(constraint)),
        random_(seed),
        free_steps_(free_steps) {}

  // False at the end.
  bool Step() {
    mask_ = MaskOf(matcher_, vocabulary_);
    std::vector<int32_t> allowed;
    for (int32_t token = 0; token < vocabulary_.num_logits(); ++token) {
      if (IsSet(mask_, token)) allowed.push_back(token);
    }
    if (allowed.empty()) {
      ADD_FAILURE() << "an empty mask behind " << text_;
      return false;
    }
    token_ = ++steps_ > free_steps_ ? Soonest(allowed) : allowed[random_() % allowed.size()];
    if (vocabulary_.IsEnd(token_)) return false;
    EXPECT_TRUE(matcher_.Accept(token_));
    text_ += vocabulary_.BytesOf(token_);
    return !matcher_.MustEnd();
  }

  const std::vector<uint32_t>& mask() const { return mask_; }
  Matcher& matcher() { return matcher_; }
  int32_t token() const { return token_; }
  const std::string& text() const { return text_; }
  int steps() const { return steps_; }

 private:
  int32_t Soonest(const std::vector<int32_t>& allowed) {
    for (const int32_t token : allowed) {
      if (vocabulary_.IsEnd(token)) return token;
    }
    for (const char byte : std::string_view("\"}])>0e")) {
      for (const int32_t token : allowed) {
        if (token == static_cast<uint8_t>(byte)) return token;
      }
    }
    return allowed[random_() % allowed.size()];
  }

  const TokenVocabulary& vocabulary_;
  Matcher matcher_;
  std::mt19937 random_;
  int free_steps_;
  int steps_ = 0;
  int32_t token_ = -1;
  std::string text_;
  std::vector<uint32_t> mask_;
};

const std::vector<std::string>& Schemas() {
  static const auto* const kSchemas = new std::vector<std::string>{
      R"({})",
      R"({"type": "object"})",
      R"({"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer",
          "minimum": 0, "maximum": 150}, "tags": {"type": "array", "items": {"enum": ["a", "b",
          "abc"]}, "maxItems": 4}}, "required": ["name", "age"], "additionalProperties": false})",
      R"({"type": "object", "properties": {"name": {"type": "null"}, "na": true},
          "additionalProperties": {"type": "boolean"}, "minProperties": 2, "maxProperties": 4})",
      R"({"type": "array", "prefixItems": [{"type": "string", "maxLength": 3}, {"type": "number",
          "exclusiveMinimum": -1.5, "maximum": 12.25}], "items": {"type": "integer",
          "multipleOf": 3, "minimum": -30, "maximum": 1000}, "minItems": 2, "maxItems": 5})",
      R"({"type": "string", "minLength": 2, "maxLength": 40})",
      R"({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {
          "value": {"type": "integer"}, "children": {"type": "array", "items": {"$ref":
          "#/$defs/tree"}}}, "required": ["value", "children"], "additionalProperties": false}}})",
      R"({"anyOf": [{"type": "object", "properties": {"k": {"const": "x"}}, "required": ["k"]},
          {"type": "array", "items": {"type": "boolean"}}, {"type": "null"}]})",
      R"({"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}},
          {"properties": {"a": {"minimum": 5, "maximum": 9}, "b": {"const": [1, {"c": "\n"}]}},
          "required": ["a", "b"]}], "additionalProperties": true})",
      R"({"type": ["integer", "null"], "exclusiveMinimum": -100, "exclusiveMaximum": -7})",
  };
  return *kSchemas;
}

std::vector<ConstraintSpec> OtherSpecs() {
  ConstraintSpec thinking = JsonSchema(R"({"type": "object", "properties": {"a": {"type":
      "string"}}, "additionalProperties": false})");
  thinking.thoughts = Thoughts{.open = "<think>", .close = "</think>"};
  ConstraintSpec opened = Choices({"yes", "no"});
  opened.thoughts = Thoughts{.open = "", .close = "<|call|>"};
  return {
      Regex("(ab|[^x-z]{2,3})*c?"),
      Regex(R"(\w+@\w+\.(com|org))"),
      Choices({"true", "abc", "abcabc", "é"}),
      GrammarText("root ::= expr\nexpr ::= term ([-+] term)*\nterm ::= [0-9]+ | \"(\" expr "
                  "\")\""),
      GrammarText(R"(root ::= %without "<tool>" ("<tool>" %json {"type": "object"} "</tool>")*)"),
      GrammarText(R"(root ::= %until "aab" %special "<|call|>" .{3})"),
      thinking,
      opened};
}

// Whether the constraint's texts have the byte vocabulary's tokens only.
bool NeedsSpecial(const ConstraintSpec& spec) {
  return spec.text.find("%special") != std::string::npos ||
         (spec.thoughts.has_value() && spec.thoughts->close == "<|call|>");
}

TEST(ConstraintTest, MasksAreWhatANaiveMatcherTakes) {
  std::vector<ConstraintSpec> specs = OtherSpecs();
  for (const std::string& schema : Schemas()) specs.push_back(JsonSchema(schema));
  const auto vocabulary = BpeVocabulary();
  for (const ConstraintSpec& spec : specs) {
    const auto grammar = GrammarOf(spec, *vocabulary, {});
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    const auto network = BuildNetwork(*grammar, vocabulary->text_characters_max(), {});
    ASSERT_TRUE(network.ok()) << network.status();
    const auto constraint = MustCompile(spec, vocabulary);
    for (uint32_t seed = 0; seed < 3; ++seed) {
      Drawing drawing(constraint, seed, 25);
      NaiveMatcher naive(*network);
      bool goes_on = true;
      while (goes_on && drawing.steps() < 45) {
        const NaiveMatcher before = naive;
        Matcher matcher = drawing.matcher();
        goes_on = drawing.Step();
        for (int32_t token = 0; token < vocabulary->num_logits(); ++token) {
          const std::string_view bytes = vocabulary->BytesOf(token);
          const bool expected = vocabulary->IsEnd(token)
                                    ? before.CanEnd()
                                    : !bytes.empty() && NaiveMatcher(before).Advance(bytes);
          ASSERT_EQ(IsSet(drawing.mask(), token), expected)
              << spec.text << "\ntoken " << token << " behind " << drawing.text();
          ASSERT_EQ(Matcher(matcher).Accept(token), expected) << spec.text << "\ntoken " << token;
        }
        naive.Advance(vocabulary->BytesOf(drawing.token()));
      }
    }
  }
}

TEST(ConstraintTest, DrawnValuesAreOfTheSchema) {
  for (const std::string& schema : Schemas()) {
    const nlohmann::json parsed = nlohmann::json::parse(schema);
    for (const auto& vocabulary : {ByteVocabulary(), BpeVocabulary()}) {
      const auto constraint = MustCompile(JsonSchema(schema), vocabulary);
      for (uint32_t seed = 0; seed < 60; ++seed) {
        Drawing drawing(constraint, seed, seed % 3 == 0 ? 5 : 60);
        while (drawing.Step()) ASSERT_LT(drawing.steps(), kStepsMax) << drawing.text();
        const nlohmann::json value = nlohmann::json::parse(drawing.text(), nullptr, false);
        ASSERT_FALSE(value.is_discarded()) << schema << "\n" << drawing.text();
        EXPECT_TRUE(IsOf(value, parsed, parsed)) << schema << "\n" << drawing.text();
      }
    }
  }
}

TEST(ConstraintTest, DrawnTextsMatchTheExpression) {
  for (const char* const pattern : {R"([a-c]{2,4}(x|yz)?)", R"(\d+(\.\d*)?)", "a(b|c)*d"}) {
    const auto constraint = MustCompile(Regex(pattern), BpeVocabulary());
    for (uint32_t seed = 0; seed < 60; ++seed) {
      Drawing drawing(constraint, seed, 30);
      while (drawing.Step() && drawing.steps() < kStepsMax) {
      }
      if (drawing.steps() == kStepsMax) continue;  // a loop without a soonest end
      EXPECT_TRUE(std::regex_match(drawing.text(), std::regex(pattern))) << drawing.text();
    }
  }
}

TEST(ConstraintTest, TextsOfAllFormsAreUtf8ButForSpecialTokens) {
  for (const ConstraintSpec& spec : OtherSpecs()) {
    if (NeedsSpecial(spec)) continue;
    const auto constraint = MustCompile(spec, ByteVocabulary());
    for (uint32_t seed = 0; seed < 20; ++seed) {
      Drawing drawing(constraint, seed, 40);
      bool goes_on = true;
      while (goes_on && drawing.steps() < kStepsMax) goes_on = drawing.Step();
      if (goes_on) continue;
      EXPECT_TRUE(ValidateUtf8(drawing.text()).ok()) << drawing.text();
    }
  }
}

TEST(ConstraintTest, ALargeAutomatonIsLeftBehindAndPlacesGoOn) {
  const Limits limits = {.automaton_bytes_max = 4096};
  const auto vocabulary = BpeVocabulary();
  const std::string schema = R"({"type": "array", "items": {"type": "string", "maxLength": 30}})";
  const auto small = MustCompile(JsonSchema(schema), vocabulary, limits);
  const auto large = MustCompile(JsonSchema(schema), vocabulary);
  Matcher old(small);
  Drawing drawing(small, 7, 200);
  Matcher reference(large);
  while (drawing.steps() < 200) {
    const bool goes_on = drawing.Step();
    EXPECT_EQ(drawing.mask(), MaskOf(reference, *vocabulary)) << drawing.text();
    if (!goes_on) break;
    ASSERT_TRUE(reference.Accept(drawing.token()));
  }
  EXPECT_LT(small->memory_bytes(), size_t{4} << 20);
  Matcher fresh(large);
  EXPECT_EQ(MaskOf(old, *vocabulary), MaskOf(fresh, *vocabulary));
}

TEST(ConstraintTest, DepthIsBoundedAndLeavesAWayOut) {
  const Limits limits = {.stack_depth_max = 12};
  const auto constraint = MustCompile(JsonSchema("{}"), ByteVocabulary(), limits);
  Constraint::Place place = constraint->Start();
  int depth = 0;
  while (depth < 100 && constraint->Advance(place, "[")) ++depth;
  EXPECT_GT(depth, 3);
  EXPECT_LE(depth, 12);
  for (; depth > 0; --depth) ASSERT_TRUE(constraint->Advance(place, "]"));
  EXPECT_TRUE(place.can_end);
}

}  // namespace
}  // namespace retroinfer::constraint
