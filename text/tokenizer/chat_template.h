// Turns a conversation into tokens by the model's own chat template.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "text/jinja/program.h"
#include "text/tokenizer/tokenizer.h"

namespace retroinfer {

// Of a conversation. What is empty is not given to the template, but for `content`.
struct ChatMessage {
  std::string role;
  std::string content;
  bool content_is_none = false;  // the template gets none instead of `content`
  std::string name;
  std::string tool_calls;  // a JSON list
  std::string tool_call_id;
  std::string reasoning_content;
};

struct ChatOptions {
  // Ends with the beginning of an answer. Default: unless the last message is to be continued.
  std::optional<bool> add_generation_prompt;
  // Ends within the last message, whose text the model goes on with.
  bool continue_final_message = false;
  std::optional<bool> enable_thinking;
  std::string tools;              // a JSON list; empty: none
  std::string arguments;          // a JSON object of further variables of the template; empty: none
  std::optional<absl::Time> now;  // of strftime_now(); none: the clock
};

// Runs the Jinja template of the model folder, in a sandbox with limits, and tokenizes what it
// writes as Hugging Face's apply_chat_template() does, but for one thing: special tokens come from
// the template's own text and its variables bos_token, eos_token, ... alone. What messages, tools
// and arguments say is text, whatever it spells. A role counts as the template's own text if it is
// one that templates make tokens of: system, user, assistant, tool, developer, ipython, function,
// observation, context, document, documents.
//
// Threads: immutable after construction.
class ChatTemplate {
 public:
  // Takes the template of tokenizer.config(). One that cannot be run is refused by Encode(), not
  // here.
  //
  // REQUIRES: `tokenizer` outlives the template.
  static ChatTemplate Create(const Tokenizer& tokenizer);
  // Takes the template in `file`.
  //
  // Returns: an error if the file cannot be read, or is no template that can be run.
  static absl::StatusOr<ChatTemplate> CreateFromFile(const Tokenizer& tokenizer,
                                                     const std::filesystem::path& file);

  // Returns: FAILED_PRECONDITION if there is no template, or it needs what this server lacks;
  //          INVALID_ARGUMENT if a message is malformed, or the template refuses the conversation;
  //          RESOURCE_EXHAUSTED if it takes too much work. Errors of a template name its line.
  absl::StatusOr<std::vector<int32_t>> Encode(std::span<const ChatMessage> messages,
                                              const ChatOptions& options = {}) const;

  // What Encode() makes of the text, or of a part of it, that Render() has returned.
  absl::StatusOr<std::vector<int32_t>> EncodeText(const jinja::Text& text) const;

  // The text that Encode() tokenizes.
  absl::StatusOr<jinja::Text> Render(std::span<const ChatMessage> messages,
                                     const ChatOptions& options = {}) const;

  // Where the template is from: "chat_template.jinja", "tokenizer_config.json", a path, or "none".
  const std::string& source() const { return source_; }
  // Differs for different templates: 16 digits; empty if there is none.
  const std::string& fingerprint() const { return fingerprint_; }
  // Whether requests with tools get a template of their own.
  bool has_tool_template() const { return tool_program_.has_value(); }
  // Why the template cannot be run, or what it names that this server lacks; empty: nothing known.
  const std::string& problem() const { return problem_; }

 private:
  using SharedProgram = absl::StatusOr<std::shared_ptr<const jinja::Program>>;

  explicit ChatTemplate(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  void SetTemplate(const std::optional<std::string>& text,
                   const std::optional<std::string>& tool_text);
  SharedProgram Compile(const std::string& text);
  absl::Status Explain(const absl::Status& error) const;

  const Tokenizer* tokenizer_;
  std::string source_ = "none";
  std::string fingerprint_;
  std::string problem_;
  SharedProgram program_;
  std::optional<SharedProgram> tool_program_;
};

}  // namespace retroinfer
