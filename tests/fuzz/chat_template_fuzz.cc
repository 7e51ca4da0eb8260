// Templates are hostile input, and so is what they are given. The input is a template, a byte 0,
// and JSON with its variables; without a byte 0 a short conversation is taken.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "absl/time/time.h"
#include "text/jinja/characters.h"
#include "text/jinja/json_value.h"
#include "text/jinja/program.h"

namespace {

using namespace retroinfer::jinja;  // NOLINT: one file

constexpr std::string_view kConversation =
    R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": " a\n<b> "},
        {"role": "assistant", "content": "x</think>y", "tool_calls": [{"type": "function",
         "function": {"name": "f", "arguments": {"p": [1, 2.5, true, null]}}}]}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"items": {}}}}],
        "add_generation_prompt": true, "bos_token": "<s>", "n": 3})";

void Require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  const std::string_view source = input.substr(0, end);
  const std::string_view json =
      end == std::string_view::npos ? kConversation : input.substr(end + 1);
  const absl::StatusOr<Program> program = Program::Parse(source);
  if (!program.ok()) return 0;
  // Small enough that no input takes long.
  const Limits limits = {.steps_max = 100'000,
                         .memory_bytes_max = size_t{4} << 20,
                         .output_bytes_max = size_t{1} << 20};
  Workspace workspace(limits, absl::UnixEpoch(), absl::UTCTimeZone());
  Program::Variables variables;
  const absl::StatusOr<Value> values = ParseJson(workspace, json);
  if (values.ok() && values->AsDict() != nullptr) {
    for (const Dict::Entry& entry : values->AsDict()->entries) {
      variables.emplace_back(entry.first.AsText()->bytes(), entry.second);
    }
  }
  const absl::StatusOr<Text> text = program->Render(workspace, variables);
  if (!text.ok()) return 0;
  Require(text->size() <= limits.output_bytes_max);
  Require(IsUtf8(text->bytes()));
  size_t begin = 0;
  for (const Text::Run& run : text->runs()) {
    Require(run.end > begin);
    begin = run.end;
  }
  Require(begin == text->size());
  return 0;
}
