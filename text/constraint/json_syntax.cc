#include "text/constraint/json_syntax.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "text/tokenizer/utf8.h"

namespace retroinfer::constraint {
namespace {

constexpr int64_t kIndentMax = 64;
constexpr int64_t kDigitsMax = 20;
constexpr int64_t kIntegerDigitsMax = 18;

std::string Escaped(char32_t code) {
  switch (code) {
    case U'"':
      return "\\\"";
    case U'\\':
      return "\\\\";
    case U'\b':
      return "\\b";
    case U'\f':
      return "\\f";
    case U'\n':
      return "\\n";
    case U'\r':
      return "\\r";
    case U'\t':
      return "\\t";
    default:
      return absl::StrFormat("\\u%04x", static_cast<uint32_t>(code));
  }
}

ExpressionPtr Digit() { return Characters({{'0', '9'}}); }
ExpressionPtr Hex() { return Characters({{'0', '9'}, {'A', 'F'}, {'a', 'f'}}); }

// [-] 0 or digits without a leading zero.
ExpressionPtr Whole(int64_t digits_max) {
  return Sequence({Optional(Bytes("-")),
                   Alternatives({Bytes("0"), Sequence({Characters({{'1', '9'}}),
                                                       Repeat(Digit(), 0, digits_max - 1)})})});
}

// \uXXXX that is no surrogate, or two that are a pair.
ExpressionPtr UnicodeEscape() {
  const ExpressionPtr d = Characters({{'d', 'd'}, {'D', 'D'}});
  const ExpressionPtr plain =
      Sequence({Characters({{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}}),
                Repeat(Hex(), 3, 3)});
  const ExpressionPtr low_d = Sequence({d, Characters({{'0', '7'}}), Repeat(Hex(), 2, 2)});
  const ExpressionPtr pair =
      Sequence({d, Characters({{'8', '9'}, {'A', 'B'}, {'a', 'b'}}), Repeat(Hex(), 2, 2),
                Bytes("\\u"), d, Characters({{'C', 'F'}, {'c', 'f'}}), Repeat(Hex(), 2, 2)});
  return Sequence({Bytes("u"), Alternatives({plain, low_d, pair})});
}

ExpressionPtr AnyCharacter() {
  const ExpressionPtr simple = Characters({{'"', '"'},
                                           {'\\', '\\'},
                                           {'/', '/'},
                                           {'b', 'b'},
                                           {'f', 'f'},
                                           {'n', 'n'},
                                           {'r', 'r'},
                                           {'t', 't'}});
  return Alternatives({Characters(CharactersOf(TextSet::kJsonText)),
                       Sequence({Bytes("\\"), Alternatives({simple, UnicodeEscape()})})});
}

}  // namespace

ExpressionPtr JsonCharacters(const CodePointSet& characters) {
  static const CodePointSet* const kPlain = new CodePointSet(CharactersOf(TextSet::kJsonText));
  const CodePointSet escaped = characters.Minus(*kPlain);
  std::vector<ExpressionPtr> parts;
  for (const CodePointRange& range : escaped.ranges()) {
    for (char32_t code = range.first; code <= range.last; ++code) {
      parts.push_back(Bytes(Escaped(code)));
    }
  }
  CodePointSet plain = characters.And(*kPlain);
  if (!plain.empty() || parts.empty()) parts.push_back(Characters(std::move(plain)));
  return Alternatives(std::move(parts));
}

ExpressionPtr JsonStringLiteral(std::string_view text) {
  std::string literal = "\"";
  for (const char byte : text) {
    if (byte == '"' || byte == '\\' || static_cast<unsigned char>(byte) < 0x20) {
      absl::StrAppend(&literal, Escaped(static_cast<char32_t>(byte)));
    } else {
      literal.push_back(byte);
    }
  }
  return Bytes(absl::StrCat(literal, "\""));
}

ExpressionPtr JsonSyntax::Once(std::optional<size_t>& rule, std::string_view name,
                               ExpressionPtr body) {
  rule = grammar_.Add(name, std::move(body));
  return CallRule(*rule);
}

ExpressionPtr JsonSyntax::Space() {
  if (space_.has_value()) return CallRule(*space_);
  return Once(space_, "white space",
              Alternatives({Empty(), Bytes(" "),
                            Sequence({Bytes("\n"), Repeat(Characters({{' ', ' '}, {'\t', '\t'}}), 0,
                                                          kIndentMax)})}));
}

ExpressionPtr JsonSyntax::Character() {
  if (character_.has_value()) return CallRule(*character_);
  return Once(character_, "character", AnyCharacter());
}

ExpressionPtr JsonSyntax::String() {
  if (string_.has_value()) return CallRule(*string_);
  return Once(string_, "string", Sequence({Bytes("\""), Repeat(AnyCharacter(), 0), Bytes("\"")}));
}

ExpressionPtr JsonSyntax::Number() {
  if (number_.has_value()) return CallRule(*number_);
  const ExpressionPtr fraction = Sequence({Bytes("."), Repeat(Digit(), 1, kDigitsMax)});
  const ExpressionPtr exponent =
      Sequence({Characters({{'e', 'e'}, {'E', 'E'}}),
                Optional(Characters({{'+', '+'}, {'-', '-'}})), Repeat(Digit(), 1, 2)});
  return Once(number_, "number",
              Sequence({Whole(kDigitsMax), Optional(fraction), Optional(exponent)}));
}

ExpressionPtr JsonSyntax::Integer() {
  if (integer_.has_value()) return CallRule(*integer_);
  return Once(integer_, "integer", Whole(kIntegerDigitsMax));
}

ExpressionPtr JsonSyntax::Boolean() { return Alternatives({Bytes("true"), Bytes("false")}); }

ExpressionPtr JsonSyntax::Null() { return Bytes("null"); }

ExpressionPtr JsonSyntax::Comma() { return Sequence({Bytes(","), Space()}); }

ExpressionPtr JsonSyntax::Member(ExpressionPtr key, ExpressionPtr value) {
  return Sequence({std::move(key), Bytes(":"), Space(), std::move(value)});
}

ExpressionPtr JsonSyntax::List(char open, ExpressionPtr part, char close) {
  const ExpressionPtr parts = Sequence({part, Repeat(Sequence({Comma(), part}), 0), Space()});
  return Sequence(
      {Bytes(std::string(1, open)), Space(), Optional(parts), Bytes(std::string(1, close))});
}

ExpressionPtr JsonSyntax::Object() {
  if (object_.has_value()) return CallRule(*object_);
  object_ = grammar_.Add("object");  // the rule of values calls it
  ExpressionPtr body = List('{', Member(String(), Value()), '}');
  grammar_.rules[*object_].body = std::move(body);
  return CallRule(*object_);
}

ExpressionPtr JsonSyntax::Array() {
  if (array_.has_value()) return CallRule(*array_);
  array_ = grammar_.Add("array");
  ExpressionPtr body = List('[', Value(), ']');
  grammar_.rules[*array_].body = std::move(body);
  return CallRule(*array_);
}

ExpressionPtr JsonSyntax::Value() {
  if (value_.has_value()) return CallRule(*value_);
  value_ = grammar_.Add("value");
  ExpressionPtr body = Alternatives({Object(), Array(), String(), Number(), Boolean(), Null()});
  grammar_.rules[*value_].body = std::move(body);
  return CallRule(*value_);
}

ExpressionPtr JsonSyntax::Literal(const common::JsonValue& value) {
  if (value.IsString()) return JsonStringLiteral(*value.String());
  if (!value.IsArray() && !value.IsObject()) return Bytes(value.Text());
  std::vector<ExpressionPtr> parts = {Bytes(value.IsArray() ? "[" : "{"), Space()};
  const auto append = [&](ExpressionPtr part) {
    if (parts.size() > 2) parts.push_back(Comma());
    parts.push_back(std::move(part));
  };
  for (const common::JsonValue element : value.Elements()) append(Literal(element));
  for (const common::JsonMember member : value.Members()) {
    append(Member(JsonStringLiteral(member.key), Literal(member.value)));
  }
  if (parts.size() > 2) parts.push_back(Space());
  parts.push_back(Bytes(value.IsArray() ? "]" : "}"));
  return Sequence(std::move(parts));
}

}  // namespace retroinfer::constraint
