#include "http_gateway/api/chat_plan.h"

#include "common/status/status_macros.h"
#include "http_gateway/api/tool_grammar.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

constexpr char kNoForm[] =
    "tools are not offered: the model's chat template shows no form of calls that this server "
    "knows; --tool-call-parser names one of hermes, llama3_json, qwen3_coder, mistral and json, "
    "or none, for calls that stay text";

bool IsForced(const ToolRequest& tools) {
  return tools.choice == ToolChoice::kRequired || tools.choice == ToolChoice::kFunction;
}

bool HasStrict(const ToolRequest& tools) {
  for (const ToolFunction& function : tools.functions) {
    if (function.strict) return true;
  }
  return false;
}

// Whether a schema is kept that nobody has insisted on.
bool HasLenient(const ToolRequest& tools) {
  for (const ToolFunction& function : tools.functions) {
    if (!function.strict && !function.parameters.is_null()) return true;
  }
  return false;
}

// The field that asks for more than calls as the model makes them; empty: none does.
const char* AskingField(const ToolRequest& tools) {
  if (IsForced(tools)) return "tool_choice";
  if (HasStrict(tools)) return "tools";
  return tools.parallel ? "" : "parallel_tool_calls";
}

absl::Status PlanTools(ToolForm form, ChatRequest* chat, ChatPlan* plan) {
  const ToolRequest& tools = chat->tools;
  plan->reader.tool_form = form;
  plan->reader.functions = CallableFunctions(tools.functions);
  plan->reader.one_call = !tools.parallel || tools.choice == ToolChoice::kFunction;
  if (form == ToolForm::kMistral || form == ToolForm::kMistralArgs) {
    for (const char* const token : {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"}) {
      chat->call.mutable_sampling()->add_shown_special_tokens(token);
    }
  }
  const std::string asking = AskingField(tools);
  if (asking.empty() && !chat->call.has_constraint()) return absl::OkStatus();
  if (plan->constraint_param.empty()) plan->constraint_param = asking;
  ToolGrammarOptions options = {
      .form = form, .all_schemas = IsForced(tools), .otherwise = chat->call.constraint()};
  ASSIGN_OR_RETURN(const std::string grammar, ToolGrammar(tools, options));
  // Where the model is free to write text, the text may be a call in another form, which small
  // models write: the call is taken, though its arguments are not kept to a schema.
  plan->reader.is_forced = IsForced(tools) || chat->call.has_constraint();
  chat->call.mutable_constraint()->set_grammar(grammar);
  if (!options.all_schemas || !HasLenient(tools)) return absl::OkStatus();
  options.all_schemas = false;
  ASSIGN_OR_RETURN(const std::string relaxed, ToolGrammar(tools, options));
  plan->relaxed.emplace().set_grammar(relaxed);
  return absl::OkStatus();
}

void SetThoughts(ThinkingOpening opening, v1::Constraint* constraint) {
  v1::Thoughts& thoughts = *constraint->mutable_thoughts();
  if (opening != ThinkingOpening::kOpened) thoughts.set_open("<think>");
  thoughts.set_close("</think>");
}

}  // namespace

absl::StatusOr<ChatPlan> PlanChat(const ChatFormat& format, ChatRequest* chat) {
  ChatPlan plan;
  plan.constraint_param = chat->options.constraint_param;
  const ToolForm form = format.tool_form;
  if (!chat->tools.functions.empty()) {
    const bool has_form = form != ToolForm::kNone && form != ToolForm::kText;
    if (form == ToolForm::kNone || (!has_form && *AskingField(chat->tools) != '\0')) {
      return ParamError("tools", kNoForm, "UNSUPPORTED_PARAMETER");
    }
    if (has_form) RETURN_IF_ERROR(PlanTools(form, chat, &plan));
  }
  const v1::Messages& messages = chat->call.messages();
  const bool continues =
      messages.continue_final_message() ||
      (messages.has_add_generation_prompt() && !messages.add_generation_prompt());
  if (continues) return plan;
  std::optional<bool> enable_thinking;
  if (messages.has_enable_thinking()) enable_thinking = messages.enable_thinking();
  const ThinkingOpening opening = format.Thinking(enable_thinking);
  plan.reader.splitter.emplace(opening == ThinkingOpening::kOpened);
  if (!chat->call.has_constraint() || !format.MayThink(enable_thinking)) return plan;
  SetThoughts(opening, chat->call.mutable_constraint());
  if (plan.relaxed.has_value()) SetThoughts(opening, &*plan.relaxed);
  return plan;
}

}  // namespace retroinfer::gateway
