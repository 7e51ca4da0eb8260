#include "text/constraint/schema_compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/text/constraint/constraint_fixtures.h"

namespace retroinfer::constraint {
namespace {

using testing::HasSubstr;

void ExpectTexts(std::string_view schema, const std::vector<std::string>& accepted,
                 const std::vector<std::string>& refused) {
  const auto constraint = MustCompile(JsonSchema(schema));
  ASSERT_NE(constraint, nullptr);
  for (const std::string& text : accepted) {
    EXPECT_TRUE(Accepts(*constraint, text)) << schema << "\naccepts " << text;
  }
  for (const std::string& text : refused) {
    EXPECT_FALSE(Accepts(*constraint, text)) << schema << "\nrefuses " << text;
  }
}

TEST(SchemaCompilerTest, AnyValue) {
  for (const char* schema : {"true", "{}", R"({"title": "x", "x-own": 1, "description": ""})"}) {
    ExpectTexts(schema,
                {"1", "-0.5e+10", "\"\"", "null", "true", "false", "[]", "{}", "[ 1,2,\n  [] ]",
                 R"({"a": {"a": 1}, "b":[{}]})", R"("\"\\\/\b\n\u00e9\uD83D\ude00 é😀")"},
                {"",
                 " 1",
                 "1 ",
                 "01",
                 "1.",
                 ".5",
                 "+1",
                 "nul",
                 "[1,]",
                 "[,1]",
                 "{\"a\"}",
                 "{a:1}",
                 "[1  ,2]",
                 "\"\n\"",
                 R"("\x")",
                 R"("\uD83D")",
                 R"("\ude00")",
                 "\"\x80\"",
                 "\"\xED\xA0\x80\"",
                 "\"a",
                 "1e999",
                 "[1\n\n]"});
  }
}

TEST(SchemaCompilerTest, TypesAndListedValues) {
  ExpectTexts(R"({"type": "integer"})", {"0", "-12", "123456789012345678"},
              {"1.0", "1e2", "1234567890123456789", "\"1\""});
  ExpectTexts(R"({"type": ["string", "null"]})", {"\"a\"", "null"}, {"1", "true"});
  ExpectTexts(R"({"type": "string", "nullable": true})", {"\"a\"", "null"}, {"1"});
  ExpectTexts(R"({"enum": ["a", 1, null, {"k": [1, "x"]}, "é\n"]})",
              {"\"a\"", "1", "null", R"({"k":[1,"x"]})", R"({ "k": [ 1, "x" ] })", "\"é\\n\""},
              {"\"b\"", "1.0", "{}", R"({"k":[1]})"});
  ExpectTexts(R"({"enum": ["a", 1, null, 7], "type": ["string", "integer"], "minimum": 5})",
              {"\"a\"", "7"}, {"1", "null"});
  ExpectTexts(R"({"const": "x\"y"})", {R"("x\"y")"}, {"\"x\""});
  EXPECT_THAT(Refusal(JsonSchema("false")), HasSubstr("accepts no text"));
  EXPECT_THAT(Refusal(JsonSchema(R"({"type": "string", "enum": [1]})")),
              HasSubstr("accepts no text"));
}

TEST(SchemaCompilerTest, Objects) {
  ExpectTexts(R"({"type": "object", "properties": {"a": {"type": "integer"},
                  "b": {"type": "string"}, "c": true}, "required": ["b"],
                  "additionalProperties": false})",
              {R"({"a":1,"b":"x","c":[]})", R"({"b":""})", "{\n  \"a\": 1,\n  \"b\": \"\"\n}",
               R"({"b":"", "c":1})"},
              {"{}", R"({"a":1})", R"({"b":"","a":1})", R"({"b":"","d":1})", R"({"b":1})",
               R"({"a":1 ,"b":""})", R"({"b":"",})"});
  // By default, other keys come behind the listed ones.
  ExpectTexts(R"({"type": "object", "properties": {"ab": {"type": "null"}},
                  "additionalProperties": true})",
              {"{}", R"({"ab":null})", R"({"ab":null,"abc":1,"a":2,"":3,"é":4})", R"({"x":1})"},
              {R"({"ab":1})", R"({"x":1,"ab":null})", R"({"\u0061b":1})"});
  ExpectTexts(R"({"type": "object", "additionalProperties": {"type": "integer"},
                  "required": ["k"]})",
              {R"({"k":1})", R"({"k":1,"l":2})"}, {"{}", R"({"l":2})", R"({"k":"a"})"});
  ExpectTexts(R"({"type": "object", "minProperties": 1, "maxProperties": 2,
                  "properties": {"a": true}, "additionalProperties": true})",
              {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":1})"}, {"{}", R"({"a":1,"b":1,"c":1})"});
  ExpectTexts(R"({"type": "object", "patternProperties": {"^x[0-9]$": {"type": "null"}},
                  "additionalProperties": false})",
              {"{}", R"({"x1":null,"x2":null})"}, {R"({"x":null})", R"({"x1":1})"});
  ExpectTexts(R"({"type": "object", "propertyNames": {"enum": ["a", "b"]}})", {R"({"a":1})", "{}"},
              {R"({"c":1})"});
  ExpectTexts(R"({"type": "object", "properties": {"a": false, "b": true}})", {R"({"b":1})", "{}"},
              {R"({"a":1})"});
}

TEST(SchemaCompilerTest, Arrays) {
  ExpectTexts(R"({"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3})",
              {"[1]", "[1,2]", "[ 1, 2, 3 ]"}, {"[]", "[1,2,3,4]", "[\"a\"]", "[1,]"});
  ExpectTexts(R"({"type": "array", "prefixItems": [{"type": "null"}, {"const": 1}],
                  "items": {"type": "string"}})",
              {"[]", "[null]", "[null,1]", "[null,1,\"a\",\"b\"]"}, {"[1]", "[null,1,2]"});
  ExpectTexts(R"({"type": "array", "items": [{"const": 1}, {"const": 2}],
                  "additionalItems": false, "minItems": 2})",
              {"[1,2]"}, {"[1]", "[1,2,3]"});
  ExpectTexts(R"({"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": true})",
              {"[]", "[\"a\"]", "[\"b\",\"a\"]"}, {"[\"a\",\"a\"]", "[\"c\"]"});
  ExpectTexts(R"({"type": "array", "maxItems": 0})", {"[]", "[ ]"}, {"[1]"});
  EXPECT_THAT(Refusal(JsonSchema(R"({"type": "array", "uniqueItems": true})")),
              HasSubstr("uniqueItems"));
}

TEST(SchemaCompilerTest, Strings) {
  ExpectTexts(R"({"type": "string", "minLength": 2, "maxLength": 3})",
              {"\"ab\"", "\"äöü\"", R"("\n\u00e9")"}, {"\"a\"", "\"abcd\""});
  ExpectTexts(R"({"type": "string", "pattern": "^a\"*$"})", {"\"a\"", R"("a\"\"")"}, {"\"b\""});
  ExpectTexts(R"({"type": "string", "pattern": "b+"})", {"\"b\"", R"("abc\n")"}, {"\"a\""});
  ExpectTexts(R"({"type": "string", "pattern": "^(ab)*$", "minLength": 3, "maxLength": 6})",
              {"\"abab\"", "\"ababab\""}, {"\"\"", "\"ab\"", "\"abababab\"", "\"aba\""});
  ExpectTexts(R"({"type": "string", "format": "date"})", {"\"2024-02-29\"", "\"2023-12-31\""},
              {"\"2023-02-29\"", "\"1900-02-29\"", "\"\""});
  ExpectTexts(R"({"type": "string", "format": "password"})", {"\"any\""}, {"1"});
}

TEST(SchemaCompilerTest, Numbers) {
  ExpectTexts(R"({"type": "integer", "minimum": -5, "exclusiveMaximum": 120})",
              {"-5", "-1", "0", "7", "99", "100", "119"}, {"-6", "120", "-0", "007", "1000"});
  ExpectTexts(R"({"type": "number", "minimum": 0, "maximum": 1})",
              {"0", "0.5", "1", "1.0", "1.000", "0.0"}, {"1.01", "-0.5", "2", "1e0"});
  ExpectTexts(R"({"type": "integer", "multipleOf": 7, "minimum": 10, "maximum": 30})",
              {"14", "21", "28"}, {"7", "15", "35"});
  ExpectTexts(R"({"type": "number", "multipleOf": 0.01})", {"1.25", "3", "-0.5"}, {"1.255"});
}

TEST(SchemaCompilerTest, CombinationsAndReferences) {
  ExpectTexts(R"({"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 1}]})",
              {"12", "\"a\""}, {"\"ab\"", "null"});
  ExpectTexts(R"({"type": "object", "properties": {"a": true, "b": true},
                  "additionalProperties": false,
                  "anyOf": [{"required": ["a"]}, {"required": ["b"]}]})",
              {R"({"a":1})", R"({"b":1})", R"({"a":1,"b":1})"}, {"{}"});
  ExpectTexts(R"({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 5}]})", {"3", "5"},
              {"2", "6", "\"a\""});
  ExpectTexts(R"({"oneOf": [
                  {"type": "object", "properties": {"k": {"const": "a"}, "x": {"type": "null"}},
                   "required": ["k"], "additionalProperties": false},
                  {"type": "object", "properties": {"k": {"const": "b"}}, "required": ["k"],
                   "additionalProperties": false}]})",
              {R"({"k":"a","x":null})", R"({"k":"b"})"}, {R"({"k":"b","x":null})", "{}"});
  EXPECT_THAT(Refusal(JsonSchema(R"({"oneOf": [{"type": "integer"}, {"type": "number"}]})")),
              HasSubstr("branches 0 and 1 may both accept"));
  ExpectTexts(R"({"$ref": "#/$defs/node", "$defs": {"node": {"type": "object",
                  "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}},
                  "required": ["next"], "additionalProperties": false}}})",
              {R"({"next":null})", R"({"next":{"next":{"next":null}}})"},
              {"{}", R"({"next":{}})", "null"});
  ExpectTexts(R"({"type": "array", "items": {"$ref": "#"}})", {"[]", "[[],[[]]]"}, {"[1]"});
}

TEST(SchemaCompilerTest, RefusesByNameAndPlace) {
  const auto expect = [](std::string_view schema, std::string_view at, std::string_view what) {
    const std::string message = Refusal(JsonSchema(schema));
    EXPECT_THAT(message, HasSubstr(std::string(at)));
    EXPECT_THAT(message, HasSubstr(std::string(what)));
  };
  expect(R"({"properties": {"a/b": {"not": {}}}})", "#/properties/a~1b/not", "\"not\"");
  expect(R"({"items": {"contains": 1}})", "#/items", "\"contains\" is not supported");
  expect(R"({"if": {}, "then": {}})", "#/if", "\"if\" is not supported");
  expect(R"({"type": "text"})", "#/type", "needs null, boolean");
  expect(R"({"minLength": -1})", "#/minLength", "an integer");
  expect(R"({"$ref": "#/$defs/x"})", "#/$ref", "no place in the schema");
  expect(R"({"$ref": "http://a/b"})", "#/$ref", "no place in the schema");
  expect(R"({"$ref": "#"})", "#", "refers to itself");
  expect(R"({"anyOf": [{"$ref": "#"}, {"$ref": "#"}]})", "constraint", "accepts no text");
  expect(R"({"anyOf": [{"$ref": "#"}, {"type": "null"}]})", "#", "begins with itself");
  expect(R"x({"pattern": "(?=a)"})x", "#", "look-around");
  expect(R"({"type": "string", "minLength": 100000000})", "#", "at most");
  expect("{", "#", "is not valid JSON");
  expect(R"({"type": "string", "type": "null"})", "#", "twice");
  expect(R"({"enum": 1})", "#/enum", "a list of values");
  expect(R"({"properties": {"a": 1}})", "#/properties/a", "a schema");
  expect(R"({"type": "array", "items": {"$ref": "#"}, "minItems": 1})", "constraint",
         "accepts no text");
}

}  // namespace
}  // namespace retroinfer::constraint
