#include "http_gateway/api/tool_grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;
using ::testing::HasSubstr;

ToolFunction Function(const std::string& name, const std::string& parameters, bool strict) {
  return {.name = name, .parameters = Json::parse(parameters), .strict = strict};
}

std::string Grammar(const ToolRequest& tools, const ToolGrammarOptions& options) {
  const absl::StatusOr<std::string> grammar = ToolGrammar(tools, options);
  EXPECT_TRUE(grammar.ok()) << grammar.status();
  return grammar.value_or("");
}

class ToolGrammarTest : public ::testing::Test {
 protected:
  ToolRequest tools_ = {
      .choice = ToolChoice::kRequired,
      .functions = {Function("add", R"({"properties": {"a": {"type": "integer"}}})", true),
                    Function("now", "null", false)}};
};

TEST_F(ToolGrammarTest, RequiredCallsOfHermes) {
  EXPECT_EQ(Grammar(tools_, {.form = ToolForm::kHermes}),
            R"(root ::= calls
calls ::= "<tool_call>" rest ("\n<tool_call>" rest)*
rest ::= "\n" call "\n</tool_call>"
call ::= call-0 | call-1
call-0 ::= "{\"name\": \"add\", \"arguments\": " %json {"type":"object","properties":{"a":{"type":"integer"}}} "}"
call-1 ::= "{\"name\": \"now\", \"arguments\": " %json {"type":"object"} "}"
)");
}

TEST_F(ToolGrammarTest, ANamedFunctionIsCalledOnce) {
  tools_.choice = ToolChoice::kFunction;
  tools_.function = "now";
  EXPECT_EQ(Grammar(tools_, {.form = ToolForm::kLlama}),
            R"(root ::= calls
calls ::= call
call ::= call-0
call-0 ::= "{\"name\": \"now\", \"parameters\": " %json {"type":"object"} "}"
)");
}

TEST_F(ToolGrammarTest, TextMayHaveCallsInIt) {
  tools_.choice = ToolChoice::kAuto;
  EXPECT_THAT(Grammar(tools_, {.form = ToolForm::kHermes}),
              HasSubstr("root ::= (%until \"<tool_call>\" rest)* %without \"<tool_call>\"\nrest"));
  EXPECT_THAT(Grammar(tools_, {.form = ToolForm::kMistral}),
              HasSubstr("root ::= %without \"[TOOL_CALLS]\" calls?\n"
                        "calls ::= %special \"[TOOL_CALLS]\" \"[\" call (\", \" call)* \"]\"\n"));
  EXPECT_THAT(Grammar(tools_, {.form = ToolForm::kJson}),
              HasSubstr("root ::= calls | [ \\t\\r\\n]* ([^ \\t\\r\\n{\\x5B] "
                        "%without \"<|python_tag|>\")?\ncalls ::= call (\"\\n\" call)*\n"));
  tools_.parallel = false;
  EXPECT_THAT(Grammar(tools_, {.form = ToolForm::kHermes}),
              HasSubstr("root ::= %without \"<tool_call>\" | %until \"<tool_call>\" rest\n"));
  EXPECT_THAT(Grammar(tools_, {.form = ToolForm::kJson}), HasSubstr("calls ::= call\n"));
}

TEST_F(ToolGrammarTest, LaterModelsOfMistralNameTheFunctionFirst) {
  const std::string grammar = Grammar(tools_, {.form = ToolForm::kMistralArgs});
  EXPECT_THAT(grammar, HasSubstr("calls ::= (%special \"[TOOL_CALLS]\" call)+\n"));
  EXPECT_THAT(grammar, HasSubstr("call-1 ::= \"now\" %special \"[ARGS]\" %json "
                                 "{\"type\":\"object\"}\n"));
}

TEST_F(ToolGrammarTest, SchemasOfOthersAreKeptOnRequest) {
  tools_.functions[0].strict = false;
  EXPECT_THAT(Grammar(tools_, {.form = ToolForm::kHermes}),
              HasSubstr(R"(\"add\", \"arguments\": " %json {"type":"object"} "}")"));
  EXPECT_THAT(Grammar(tools_, {.form = ToolForm::kHermes, .all_schemas = true}),
              HasSubstr(R"(%json {"type":"object","properties")"));
}

TEST_F(ToolGrammarTest, ParametersOfQwenCoderAreTagsInTheSchemasOrder) {
  tools_.functions = {
      Function("f", R"({"type": "object", "required": ["s"], "$defs": {"x": {"type": "null"}},
                        "properties": {"s": {"type": "string"}, "n": {"$ref": "#/$defs/x"},
                                       "e": {"enum": ["a", "\"b\""]}}})",
               true),
      Function("g", "null", false)};
  EXPECT_EQ(Grammar(tools_, {.form = ToolForm::kQwenCoder}),
            R"(root ::= calls
calls ::= "<tool_call>" rest ("\n<tool_call>" rest)*
rest ::= "\n" call "\n</tool_call>"
call ::= call-0 | call-1
call-0 ::= "<function=f>\n" ("<parameter=s>\n" %until "\n</parameter>" "\n"))"
            R"( ("<parameter=n>\n" %json {"$ref":"#/$defs/x","$defs":{"x":{"type":"null"}}})"
            R"( "\n</parameter>" "\n")?)"
            R"( ("<parameter=e>\n" ("a" | "\"b\"") "\n</parameter>" "\n")? "</function>"
call-1 ::= "<function=g>\n" ("<parameter=" [^>\n]+ ">\n" %until "\n</parameter>" "\n")* "</function>"
)");
}

TEST_F(ToolGrammarTest, AnAnswerWithoutCallsMayBeConstrained) {
  tools_.choice = ToolChoice::kAuto;
  ToolGrammarOptions options = {.form = ToolForm::kHermes};
  options.otherwise.set_json_schema(R"({"type":"array"})");
  EXPECT_THAT(Grammar(tools_, options),
              HasSubstr("root ::= calls | %json {\"type\":\"array\"}\ncalls"));
  options.otherwise.set_regex("a\"\\d\n\x01");
  EXPECT_THAT(Grammar(tools_, options), HasSubstr(R"(| %regex "a\"\\d\n\x01")"));
  options.otherwise.mutable_choices()->add_texts("yes");
  options.otherwise.mutable_choices()->add_texts("no\t");
  EXPECT_THAT(Grammar(tools_, options), HasSubstr("root ::= calls | \"yes\" | \"no\\t\"\n"));
  options.otherwise.set_grammar("root ::= \"x\"");
  EXPECT_EQ(ToolGrammar(tools_, options).status().code(), absl::StatusCode::kInvalidArgument);
  tools_.choice = ToolChoice::kRequired;  // then no other answer is wanted
  EXPECT_THAT(Grammar(tools_, options), HasSubstr("root ::= calls\n"));
}

}  // namespace
}  // namespace retroinfer::gateway
