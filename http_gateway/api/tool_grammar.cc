#include "http_gateway/api/tool_grammar.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/status/status_macros.h"
#include "http_gateway/api/callable_functions.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

// As a grammar writes it, with its quotes.
std::string Literal(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out.push_back('\\');
    if (c == '\n') {
      out.append("\\n");
    } else if (c == '\r') {
      out.append("\\r");
    } else if (c == '\t') {
      out.append("\\t");
    } else if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppend(&out, "\\x", absl::Hex(c, absl::kZeroPad2));
    } else {
      out.push_back(c);
    }
  }
  out.push_back('"');
  return out;
}

// %json takes objects alone: `true`, like what is no schema at all, accepts any value.
std::string JsonRule(const Json& schema) {
  if (schema.is_object()) return absl::StrCat("%json ", schema.dump());
  return schema == false ? R"(%json {"not":{}})" : "%json {}";
}

// The schema of a function's arguments: an object, whether or not it says so.
Json ArgumentsSchema(const ToolFunction& function, bool all_schemas) {
  Json any = Json::object({{"type", "object"}});
  if (!function.parameters.is_object() || (!function.strict && !all_schemas)) return any;
  if (function.parameters.contains("type")) return function.parameters;
  any.update(function.parameters);
  return any;
}

// The schema of one parameter, with the definitions that it may refer to.
Json ParameterSchema(const Json& schema, const Json& whole) {
  if (!schema.is_object()) return schema;
  Json result = schema;
  for (const char* const name : {"$defs", "definitions"}) {
    if (whole.contains(name) && !result.contains(name)) result[name] = whole[name];
  }
  return result;
}

bool IsRequired(const Json& schema, const std::string& name) {
  const auto required = schema.find("required");
  return required != schema.end() && required->is_array() &&
         std::find(required->begin(), required->end(), name) != required->end();
}

// A string's texts that are listed, or any text.
std::string StringValue(const Json& schema) {
  constexpr char kEnd[] = "\n</parameter>";
  std::vector<std::string> texts;
  if (schema.is_object() && schema.contains("const") && schema["const"].is_string()) {
    texts.push_back(schema["const"].get<std::string>());
  } else if (schema.is_object() && schema.contains("enum") && schema["enum"].is_array()) {
    for (const Json& text : schema["enum"]) {
      if (text.is_string()) texts.push_back(text.get<std::string>());
    }
  }
  if (texts.empty()) return absl::StrCat("%until ", Literal(kEnd));
  for (std::string& text : texts) text = Literal(text);
  return absl::StrCat("(", absl::StrJoin(texts, " | "), ") ", Literal(kEnd));
}

// <function=NAME> to </function>.
std::string XmlCallRule(const ToolFunction& function, bool all_schemas) {
  const Json schema = ArgumentsSchema(function, all_schemas);
  const CallableFunctions kinds({function});
  std::string rule = Literal(absl::StrCat("<function=", function.name, ">\n"));
  const auto properties = schema.find("properties");
  if (properties == schema.end() || !properties->is_object()) {
    // Nothing is known, or wanted, of the parameters.
    return absl::StrCat(rule, " (\"<parameter=\" [^>\\n]+ \">\\n\" %until \"\\n</parameter>\" ",
                        "\"\\n\")* \"</function>\"");
  }
  for (const auto& [name, property] : properties->items()) {
    const bool is_text = kinds.KindOf(function.name, name) != ParameterKind::kJson;
    const std::string value =
        is_text ? StringValue(property)
                : absl::StrCat(JsonRule(ParameterSchema(property, schema)), " \"\\n</parameter>\"");
    absl::StrAppend(&rule, " (", Literal(absl::StrCat("<parameter=", name, ">\n")), " ", value,
                    " \"\\n\")", IsRequired(schema, name) ? "" : "?");
  }
  return absl::StrCat(rule, " \"</function>\"");
}

// {"name": ..., KEY: {...}}
std::string JsonCallRule(const ToolFunction& function, bool all_schemas, const char* key) {
  return absl::StrCat(Literal(absl::StrCat("{\"name\": \"", function.name, "\", \"", key, "\": ")),
                      " ", JsonRule(ArgumentsSchema(function, all_schemas)), " \"}\"");
}

// A call, without what comes around it.
std::string CallRule(ToolForm form, const ToolFunction& function, bool all_schemas) {
  switch (form) {
    case ToolForm::kQwenCoder:
      return XmlCallRule(function, all_schemas);
    case ToolForm::kMistralArgs:
      return absl::StrCat(Literal(function.name), " %special \"[ARGS]\" ",
                          JsonRule(ArgumentsSchema(function, all_schemas)));
    case ToolForm::kLlama:
      return JsonCallRule(function, all_schemas, "parameters");
    default:
      return JsonCallRule(function, all_schemas, "arguments");
  }
}

bool HasTag(ToolForm form) { return form == ToolForm::kHermes || form == ToolForm::kQwenCoder; }

// Calls, one or several, from the first byte on.
std::string CallsRule(ToolForm form, bool one) {
  switch (form) {
    case ToolForm::kHermes:
    case ToolForm::kQwenCoder:
      return absl::StrCat("\"<tool_call>\" rest", one ? "" : " (\"\\n<tool_call>\" rest)*");
    case ToolForm::kMistral:
      return absl::StrCat("%special \"[TOOL_CALLS]\" \"[\" call", one ? "" : " (\", \" call)*",
                          " \"]\"");
    case ToolForm::kMistralArgs:
      return absl::StrCat("(%special \"[TOOL_CALLS]\" call)", one ? "" : "+");
    case ToolForm::kLlama:
      return absl::StrCat("call", one ? "" : " (\"; \" call)*");
    default:
      return absl::StrCat("call", one ? "" : " (\"\\n\" call)*");
  }
}

// Text, and calls where the model makes them.
std::string TextRule(ToolForm form, bool one) {
  switch (form) {
    case ToolForm::kHermes:
    case ToolForm::kQwenCoder:
      return one ? "%without \"<tool_call>\" | %until \"<tool_call>\" rest"
                 : "(%until \"<tool_call>\" rest)* %without \"<tool_call>\"";
    case ToolForm::kMistral:
    case ToolForm::kMistralArgs:
      return "%without \"[TOOL_CALLS]\" calls?";
    default:
      return "calls | [ \\t\\r\\n]* ([^ \\t\\r\\n{\\x5B] %without \"<|python_tag|>\")?";
  }
}

absl::StatusOr<std::string> OtherwiseRule(const v1::Constraint& otherwise) {
  switch (otherwise.form_case()) {
    case v1::Constraint::kJsonSchema:
      return absl::StrCat("%json ", otherwise.json_schema());
    case v1::Constraint::kRegex:
      return absl::StrCat("%regex ", Literal(otherwise.regex()));
    case v1::Constraint::kChoices:
      return absl::StrJoin(
          otherwise.choices().texts(), " | ",
          [](std::string* out, const std::string& text) { out->append(Literal(text)); });
    default:
      return ParamError("tools",
                        "tools and a grammar of the answer exclude each other: write calls into "
                        "the grammar, or send \"tool_choice\": \"none\"");
  }
}

}  // namespace

absl::StatusOr<std::string> ToolGrammar(const ToolRequest& tools,
                                        const ToolGrammarOptions& options) {
  const bool is_auto = tools.choice == ToolChoice::kAuto;
  const bool one = !tools.parallel || tools.choice == ToolChoice::kFunction;
  const bool has_otherwise = options.otherwise.form_case() != v1::Constraint::FORM_NOT_SET;
  std::string root = "calls";
  if (is_auto && has_otherwise) {
    ASSIGN_OR_RETURN(const std::string otherwise, OtherwiseRule(options.otherwise));
    root = absl::StrCat("calls | ", otherwise);
  } else if (is_auto) {
    root = TextRule(options.form, one);
  }
  std::vector<std::string> names;
  std::string rules;
  for (const ToolFunction& function : tools.functions) {
    if (tools.choice == ToolChoice::kFunction && function.name != tools.function) continue;
    names.push_back(absl::StrCat("call-", names.size()));
    absl::StrAppend(&rules, names.back(),
                    " ::= ", CallRule(options.form, function, options.all_schemas), "\n");
  }
  std::string grammar = absl::StrCat("root ::= ", root, "\n");
  if (!is_auto || has_otherwise || !HasTag(options.form)) {
    absl::StrAppend(&grammar, "calls ::= ", CallsRule(options.form, one), "\n");
  }
  if (HasTag(options.form)) {
    absl::StrAppend(&grammar, "rest ::= \"\\n\" call \"\\n</tool_call>\"\n");
  }
  absl::StrAppend(&grammar, "call ::= ", absl::StrJoin(names, " | "), "\n", rules);
  return grammar;
}

}  // namespace retroinfer::gateway
