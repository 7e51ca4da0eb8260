// Turns a conversation into the tokens of the model's chat format.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/tokenizer/tokenizer.h"

namespace retroinfer {

struct ChatMessage {
  std::string role;  // "system", "user" or "assistant"
  std::string content;
};

struct ChatOptions {
  // Ends with the beginning of an answer.
  bool add_generation_prompt = true;
  // Qwen3's switch: false puts an empty thought before the answer. Others do not know it.
  bool enable_thinking = true;
  // What a template of Llama 3.1 or later says is today, "26 Jul 2024"; empty: what the template
  // says by default.
  std::string date;
};

// The formats are written here in C++, and the model folder's Jinja template only tells which one
// it is and what its default texts are. Special tokens come from the format alone: contents are
// encoded as plain text. For these formats the ids are those of Hugging Face's
// apply_chat_template().
//
// Threads: immutable after construction.
class ChatTemplate {
 public:
  enum class Family {
    kLlama3,  // <|start_header_id|>role<|end_header_id|>\n\ncontent<|eot_id|>
    kChatMl,  // <|im_start|>role\ncontent<|im_end|>\n: Qwen
    kPlain,   // no format that is known: the contents, a line each
  };

  // Recognises the format from the chat template and the special tokens of `tokenizer`.
  //
  // REQUIRES: `tokenizer` outlives the template.
  static ChatTemplate Create(const Tokenizer& tokenizer);

  // Returns: INVALID_ARGUMENT if there is no message, a role is not one of the three (tool calls
  // have
  //          a structure that these messages do not carry), or a text is not UTF-8.
  absl::StatusOr<std::vector<int32_t>> Encode(std::span<const ChatMessage> messages,
                                              const ChatOptions& options = {}) const;

  Family family() const { return family_; }
  // "llama3", "chatml" or "plain".
  std::string_view family_name() const;

 private:
  class Writer;

  explicit ChatTemplate(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
  bool RecognizeLlama3(const std::string& jinja);
  bool RecognizeChatMl(const std::string& jinja);

  absl::Status WriteLlama3(std::span<const ChatMessage> messages, const ChatOptions& options,
                           Writer& writer) const;
  absl::Status WriteChatMl(std::span<const ChatMessage> messages, const ChatOptions& options,
                           Writer& writer) const;
  absl::Status WritePlain(std::span<const ChatMessage> messages, Writer& writer) const;

  const Tokenizer* tokenizer_;
  Family family_ = Family::kPlain;
  bool trims_ = false;  // white space around contents is dropped

  // kLlama3: the tokens, and the lines on dates that Llama 3.1 has in its system message.
  int32_t start_header_id_ = 0;
  int32_t end_header_id_ = 0;
  int32_t end_of_turn_id_ = 0;
  std::optional<int32_t> bos_id_;
  std::string knowledge_line_;  // "Cutting Knowledge Date: December 2023\n"; empty: no such lines
  std::string default_date_;
  bool knows_today_ = false;  // the template asks for the date of today

  // kChatMl: the tokens, and what differs between Qwen's generations.
  int32_t message_start_id_ = 0;
  int32_t message_end_id_ = 0;
  std::optional<std::string> default_system_;  // said where the conversation has no system message
  bool drops_thoughts_ = false;                // "<think>..</think>" of earlier answers
  bool keeps_last_thought_ = false;            // but not of answers after the last question
  bool can_skip_thinking_ = false;             // understands enable_thinking
  std::string answer_prefix_;  // what the template begins an answer with: "<think>\n", or nothing
};

}  // namespace retroinfer
