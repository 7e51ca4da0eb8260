#include "http_gateway/api/message_blocks.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "http_gateway/api/conversation_builder.h"
#include "http_gateway/api/stable_prompt.h"

namespace retroinfer::gateway {
namespace {

constexpr size_t kShownBytes = 64;  // of a word that a stranger chose

absl::Status Missing(const std::string& path) {
  return ParamError(path, absl::StrCat(path, " is missing"), "MISSING_PARAMETER");
}

absl::StatusOr<std::string> ReadRequired(Fields& fields, const char* name) {
  std::optional<std::string> text;
  RETURN_IF_ERROR(fields.Read(name, &text));
  if (!text.has_value()) return Missing(fields.PathOf(name));
  return *std::move(text);
}

absl::Status NoSuchBlock(const std::string& path, const std::string& type) {
  return ParamError(
      path + ".type",
      absl::StrCat(path, " is of the type \"", absl::Utf8SafeCEscape(type.substr(0, kShownBytes)),
                   "\", which is not offered here: this model reads text, no images "
                   "or documents"),
      "UNSUPPORTED_PARAMETER");
}

// Opens element `i` of `list` and reads its type.
absl::StatusOr<Fields> OpenBlock(const Fields& owner, const Json& list, const std::string& path,
                                 size_t i, std::string* type) {
  ASSIGN_OR_RETURN(Fields block, owner.Inner(list[i], absl::StrCat(path, "[", i, "]")));
  ASSIGN_OR_RETURN(*type, ReadRequired(block, "type"));
  for (const char* const name : {kCacheControl, "citations", "caller"}) block.Ignore(name);
  return block;
}

// A text, or blocks of text, each a line. Absent: empty.
absl::StatusOr<std::string> ReadTexts(Fields& fields, const char* name) {
  const Json* const value = fields.Find(name);
  const std::string path = fields.PathOf(name);
  if (value == nullptr) return "";
  if (value->is_string()) return value->get<std::string>();
  if (!value->is_array()) {
    return ParamError(path, absl::StrCat(path, " must be a string or a list of blocks"),
                      "INVALID_TYPE");
  }
  std::string text, type;
  for (size_t i = 0; i < value->size(); ++i) {
    ASSIGN_OR_RETURN(Fields block, OpenBlock(fields, *value, path, i, &type));
    if (type != "text") return NoSuchBlock(absl::StrCat(path, "[", i, "]"), type);
    ASSIGN_OR_RETURN(const std::string piece, ReadRequired(block, "text"));
    RETURN_IF_ERROR(block.CheckUnknown());
    if (i > 0) text.push_back('\n');
    text.append(piece);
  }
  return text;
}

// The result of a call. The model sees of is_error what the text says; an error without one is told
// in a word.
absl::Status AddResult(Fields& block, ConversationBuilder* builder) {
  ASSIGN_OR_RETURN(const std::string id, ReadRequired(block, "tool_use_id"));
  ASSIGN_OR_RETURN(std::string text, ReadTexts(block, "content"));
  std::optional<bool> is_error;
  RETURN_IF_ERROR(block.Read("is_error", &is_error));
  if (text.empty() && is_error.value_or(false)) text = "error";
  builder->AddResult(id, std::move(text));
  return absl::OkStatus();
}

absl::Status AddCall(Fields& block, ConversationBuilder* builder) {
  ASSIGN_OR_RETURN(const std::string id, ReadRequired(block, "id"));
  ASSIGN_OR_RETURN(const std::string name, ReadRequired(block, "name"));
  const Json* const input = block.Find("input");
  if (input == nullptr || !input->is_object()) {
    return ParamError(block.PathOf("input"),
                      absl::StrCat(block.PathOf("input"), " must be an object"), "INVALID_TYPE");
  }
  builder->AddCall(id, name, input->dump());
  return absl::OkStatus();
}

absl::Status AddAssistantBlock(Fields& block, const std::string& path, const std::string& type,
                               ConversationBuilder* builder) {
  if (type == "text") {
    ASSIGN_OR_RETURN(const std::string text, ReadRequired(block, "text"));
    builder->AddAnswer(text);
  } else if (type == "thinking") {
    ASSIGN_OR_RETURN(const std::string thoughts, ReadRequired(block, "thinking"));
    block.Ignore("signature");
    if (!thoughts.empty()) builder->AddThoughts(thoughts);
  } else if (type == "redacted_thinking") {
    block.Ignore("data");  // of another server
  } else if (type == "tool_use") {
    RETURN_IF_ERROR(AddCall(block, builder));
  } else {
    return NoSuchBlock(path, type);
  }
  return block.CheckUnknown();
}

absl::Status AddUserBlock(Fields& block, const std::string& path, const std::string& type,
                          ConversationBuilder* builder, std::optional<std::string>* text) {
  if (type == "text") {
    ASSIGN_OR_RETURN(const std::string piece, ReadRequired(block, "text"));
    if (text->has_value()) (*text)->push_back('\n');
    *text = text->value_or("") + piece;
  } else if (type == "tool_result") {
    RETURN_IF_ERROR(AddResult(block, builder));
  } else {
    return NoSuchBlock(path, type);
  }
  return block.CheckUnknown();
}

absl::Status AddBlocks(const Fields& message, const Json& blocks, const std::string& path,
                       const std::string& role, ConversationBuilder* builder) {
  std::optional<std::string> text;  // of a user
  std::string type;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const std::string place = absl::StrCat(path, "[", i, "]");
    ASSIGN_OR_RETURN(Fields block, OpenBlock(message, blocks, path, i, &type));
    if (role == "assistant") {
      RETURN_IF_ERROR(AddAssistantBlock(block, place, type, builder));
    } else {
      RETURN_IF_ERROR(AddUserBlock(block, place, type, builder, &text));
    }
  }
  if (text.has_value()) builder->AddMessage(role, *std::move(text));
  return absl::OkStatus();
}

absl::Status AddMessage(Fields& message, ConversationBuilder* builder) {
  ASSIGN_OR_RETURN(const std::string role, ReadRequired(message, "role"));
  if (role != "user" && role != "assistant" && role != "system") {
    return ParamError(message.PathOf("role"),
                      absl::StrCat(message.PathOf("role"), " must be user or assistant"));
  }
  const std::string path = message.PathOf("content");
  const Json* const content = message.Find("content");
  if (content == nullptr) return Missing(path);
  if (content->is_array()) {
    RETURN_IF_ERROR(AddBlocks(message, *content, path, role, builder));
  } else if (!content->is_string()) {
    return ParamError(path, absl::StrCat(path, " must be a string or a list of blocks"),
                      "INVALID_TYPE");
  } else if (role == "assistant") {
    builder->AddAnswer(content->get<std::string>());
  } else {
    builder->AddMessage(role, content->get<std::string>());
  }
  return message.CheckUnknown();
}

}  // namespace

absl::Status ReadMessageBlocks(Fields& fields, generation::v1::Messages* conversation) {
  ConversationBuilder builder(conversation);
  ASSIGN_OR_RETURN(std::string system, ReadTexts(fields, "system"));
  if (!system.empty()) builder.AddMessage("system", std::move(system));
  const Json* const messages = fields.Find("messages");
  if (messages == nullptr) return Missing("messages");
  if (!messages->is_array() || messages->empty()) {
    return ParamError("messages", "messages must be a list of at least one message",
                      messages->is_array() ? "EMPTY_PROMPT" : "INVALID_TYPE");
  }
  bool ends_in_answer = false;
  for (size_t i = 0; i < messages->size(); ++i) {
    ASSIGN_OR_RETURN(Fields message,
                     fields.Inner((*messages)[i], absl::StrCat("messages[", i, "]")));
    RETURN_IF_ERROR(AddMessage(message, &builder));
    ends_in_answer = (*messages)[i]["role"] == "assistant";
  }
  builder.Finish();
  if (conversation->messages_size() == 0) {
    return ParamError("messages", "messages have no content", "EMPTY_PROMPT");
  }
  // The model goes on with what the client has begun for it.
  const generation::v1::Message& last = *conversation->messages().rbegin();
  if (ends_in_answer && last.role() == "assistant" && last.tool_calls().empty()) {
    conversation->set_continue_final_message(true);
  }
  return absl::OkStatus();
}

}  // namespace retroinfer::gateway
