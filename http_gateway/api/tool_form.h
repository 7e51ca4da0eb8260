// How a model writes a call.
#pragma once

namespace retroinfer::gateway {

// Learnt from the chat template (http_gateway/worker/model_watch.h), or said by --tool-call-parser.
enum class ToolForm {
  kNone,         // not known: functions cannot be offered
  kText,         // by the option: functions are shown to the model, its calls stay text
  kHermes,       // <tool_call>{"name": ..., "arguments": {...}}</tool_call>: Hermes, Qwen2.5, Qwen3
  kLlama,        // {"name": ..., "parameters": {...}} as the whole answer: Llama 3.1
  kQwenCoder,    // <tool_call><function=NAME><parameter=KEY>VALUE...: Qwen3-Coder
  kMistral,      // [TOOL_CALLS][{"name": ..., "arguments": {...}}]
  kMistralArgs,  // [TOOL_CALLS]NAME[ARGS]{...}: its later models
  kJson,         // {"name": ..., "arguments": {...}}, bare or between fences
};

}  // namespace retroinfer::gateway
