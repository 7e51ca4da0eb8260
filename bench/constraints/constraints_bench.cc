// Times what a constraint costs: compiling it, a mask that is made, a mask that is remembered.
// Prints one JSON object a line. RETROINFER_BENCH_SMOKE=1 uses a small vocabulary and few rounds.
//
//   constraints_bench [model folder]
//
// Without a folder the vocabulary is made up: 151,936 tokens that look like those of a byte-level
// BPE.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "text/constraint/constraint_compiler.h"
#include "text/constraint/matcher.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/utf8.h"

namespace retroinfer::bench {
namespace {

using constraint::ConstraintCompiler;
using constraint::ConstraintSpec;
using constraint::Matcher;
using constraint::TokenVocabulary;

double MicrosecondsSince(std::chrono::steady_clock::time_point begin) {
  const std::chrono::duration<double, std::micro> elapsed =
      std::chrono::steady_clock::now() - begin;
  return elapsed.count();
}

// Words with and without a space before them, numbers, punctuation, indents, and parts of
// characters.
std::string MadeUpToken(std::mt19937& random) {
  static constexpr std::string_view kMarks = "\"{}[]:,.;()<>/\\'=_-+*#\n";
  std::string token;
  const auto kind = random() % 100;
  if (kind < 50) token.push_back(' ');
  if (kind < 80) {
    for (auto i = 2 + random() % 9; i > 0; --i) {
      token.push_back(static_cast<char>('a' + random() % 26));
    }
  } else if (kind < 90) {
    for (auto i = 1 + random() % 4; i > 0; --i) {
      AppendUtf8(0x4E00 + static_cast<char32_t>(random() % 20000), token);
    }
    if (random() % 4 == 0) token.pop_back();
  } else if (kind < 97) {
    for (auto i = 2 + random() % 3; i > 0; --i) token.push_back(kMarks[random() % kMarks.size()]);
    if (random() % 2 == 0) token += "abc";
  } else {
    token.assign(1 + random() % 60, ' ');
    if (random() % 2 == 0) token = std::string(1 + random() % 3, '\n') + token;
  }
  return token;
}

std::unique_ptr<Tokenizer> MadeUpTokenizer(size_t num_tokens) {
  std::mt19937 random(11);
  TokenizerSpec spec;
  std::unordered_set<std::string> seen;
  const auto add = [&](std::string_view bytes) {
    std::string token;
    for (const char byte : bytes) {
      AppendUtf8(ByteAlphabetCharacter(static_cast<uint8_t>(byte)), token);
    }
    if (!seen.insert(token).second) return;
    spec.model.vocabulary.push_back({token, static_cast<int32_t>(spec.model.vocabulary.size())});
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  while (spec.model.vocabulary.size() < num_tokens) add(MadeUpToken(random));
  return *Tokenizer::Create(spec, {});
}

std::string SchemaOfBytes(size_t bytes) {
  std::string schema = R"({"type": "object", "additionalProperties": false, "properties": {)";
  std::string required;
  for (int i = 0; schema.size() < bytes; ++i) {
    absl::StrAppend(&schema, i == 0 ? "" : ", ", "\"field_", i, "\": ");
    absl::StrAppend(&required, i == 0 ? "" : ", ", "\"field_", i, "\"");
    const char* const kinds[] = {
        R"({"type": "string", "description": "what it is", "maxLength": 80})",
        R"({"type": "integer", "minimum": 0, "maximum": 100000})",
        R"({"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 10})",
        R"({"anyOf": [{"type": "number"}, {"type": "null"}]})",
        R"({"type": "object", "properties": {"x": {"type": "string", "format": "date-time"},
            "y": {"type": "boolean"}}, "required": ["x"], "additionalProperties": false})"};
    schema += kinds[i % 5];
  }
  return absl::StrCat(schema, "}, \"required\": [", required, "]}");
}

void Print(const char* what, std::vector<double> times) {
  std::sort(times.begin(), times.end());
  std::printf(
      "{\"what\": \"%s\", \"rounds\": %zu, \"us_median\": %.2f, \"us_p90\": %.2f, \"us_max\": "
      "%.2f}\n",
      what, times.size(), times[times.size() / 2], times[times.size() * 9 / 10], times.back());
}

struct Case {
  const char* name;
  ConstraintSpec spec;
  std::string text;  // one of its texts, read byte by byte
};

std::vector<Case> Cases() {
  using Form = ConstraintSpec::Form;
  ConstraintSpec thinking = {.form = Form::kJsonSchema, .text = R"({"type": "object"})"};
  thinking.thoughts = constraint::Thoughts{.open = "", .close = "</think>"};
  return {
      {"object_any",
       {.form = Form::kJsonSchema, .text = R"({"type": "object"})"},
       R"({"name": "A string of some words, é", "list": [1, 2.5, {"a": true}], "n": null})"},
      {"strings_bounded",
       {.form = Form::kJsonSchema,
        .text = R"({"type": "array", "items": {"type": "string", "maxLength": 500}})"},
       R"(["A string of some words, which has an end", "another one"])"},
      {"pattern",
       {.form = Form::kJsonSchema,
        .text = R"({"type": "string", "pattern": "^[A-Z][a-z ]+(, [A-Z][a-z ]+)*$"})"},
       R"("Some words, Other words, And the last ones")"},
      {"date_time",
       {.form = Form::kJsonSchema, .text = R"({"type": "string", "format": "date-time"})"},
       R"("2026-11-26T00:06:45.123Z")"},
      {"tool_calls",
       {.form = Form::kGrammar,
        .text = "root ::= %without \"<tool_call>\" (\"<tool_call>\" %json {\"type\": \"object\"} "
                "\"</tool_call>\")*"},
       "Some words before. <tool_call>{\"a\": 1}</tool_call>"},
      {"thoughts", thinking, "I think.\n\nSo I am <b>.</think>\n\n{\"a\": 1}"},
  };
}

std::shared_ptr<const constraint::Constraint> Compiled(
    const ConstraintSpec& spec, const std::shared_ptr<const TokenVocabulary>& vocabulary) {
  auto compiled = ConstraintCompiler(vocabulary).Compile(spec);
  if (!compiled.ok()) {
    std::fprintf(stderr, "%s\n", std::string(compiled.status().message()).c_str());
    std::exit(1);
  }
  return *std::move(compiled);
}

void Must(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

// A mask is new where neither it nor the states behind it were met before: each is made with a
// constraint of its own.
void TimeMasks(const Case& one, const Tokenizer& tokenizer,
               const std::shared_ptr<const TokenVocabulary>& vocabulary, size_t places_max) {
  const auto tokens = tokenizer.Encode(one.text, {.add_special = false});
  Must(tokens.ok(), "the text of a case cannot be tokenized");
  std::vector<double> made, remembered, accepted;
  std::vector<uint32_t> mask(vocabulary->mask_words());
  for (size_t place = 0; place < std::min(places_max, tokens->size()); ++place) {
    Matcher matcher(Compiled(one.spec, vocabulary));
    for (size_t i = 0; i < place; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      Must(matcher.Accept((*tokens)[i]), "the text of a case is not of the constraint");
      accepted.push_back(MicrosecondsSince(begin));
    }
    auto begin = std::chrono::steady_clock::now();
    matcher.Fill(mask);
    made.push_back(MicrosecondsSince(begin));
    begin = std::chrono::steady_clock::now();
    matcher.Fill(mask);
    remembered.push_back(MicrosecondsSince(begin));
    const auto next = static_cast<uint32_t>((*tokens)[place]);
    Must((mask[next / 32] >> (next % 32) & 1) != 0, "a mask lacks the next token of its text");
  }
  Print(absl::StrCat(one.name, ".mask_new").c_str(), std::move(made));
  Print(absl::StrCat(one.name, ".mask_remembered").c_str(), std::move(remembered));
  if (!accepted.empty()) Print(absl::StrCat(one.name, ".accept").c_str(), std::move(accepted));
}

void TimeCompile(const std::shared_ptr<const TokenVocabulary>& vocabulary, int rounds) {
  const ConstraintSpec spec = {.form = ConstraintSpec::Form::kJsonSchema,
                               .text = SchemaOfBytes(5000)};
  std::vector<double> made, remembered;
  for (int round = 0; round < rounds; ++round) {
    ConstraintCompiler compiler(vocabulary);
    auto begin = std::chrono::steady_clock::now();
    Must(compiler.Compile(spec).ok(), "the schema does not compile");
    made.push_back(MicrosecondsSince(begin));
    begin = std::chrono::steady_clock::now();
    Must(compiler.Compile(spec).ok(), "the schema does not compile");
    remembered.push_back(MicrosecondsSince(begin));
  }
  Print("schema_5kb.compile_new", std::move(made));
  Print("schema_5kb.compile_remembered", std::move(remembered));
}

int Run(const char* folder) {
  const bool smoke = std::getenv("RETROINFER_BENCH_SMOKE") != nullptr;
  std::unique_ptr<Tokenizer> tokenizer;
  if (folder != nullptr) {
    auto loaded = Tokenizer::Load(folder);
    Must(loaded.ok(), "the tokenizer cannot be read");
    tokenizer = *std::move(loaded);
  } else {
    tokenizer = MadeUpTokenizer(smoke ? 2'000 : 151'936);
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto vocabulary = TokenVocabulary::Create(*tokenizer, {}, tokenizer->vocab_size());
  Print("vocabulary", {MicrosecondsSince(begin)});
  for (const auto set : {constraint::TextSet::kJsonText, constraint::TextSet::kNoAngle}) {
    std::fprintf(stderr, "tokens %zu, without set %d: %zu in %zu nodes\n",
                 vocabulary->trie().num_tokens(), static_cast<int>(set),
                 vocabulary->TrieWithout(set).num_tokens(),
                 vocabulary->TrieWithout(set).num_nodes());
  }
  TimeCompile(vocabulary, smoke ? 2 : 100);
  for (const Case& one : Cases()) {
    TimeMasks(one, *tokenizer, vocabulary, smoke ? 3 : 1000);
  }
  return 0;
}

}  // namespace
}  // namespace retroinfer::bench

int main(int argc, char** argv) { return retroinfer::bench::Run(argc > 1 ? argv[1] : nullptr); }
