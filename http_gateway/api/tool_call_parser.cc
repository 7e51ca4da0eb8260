#include "http_gateway/api/tool_call_parser.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "http_gateway/api/tag_search.h"
#include "http_gateway/json/json_text.h"
#include "http_gateway/json/strict_json.h"

namespace retroinfer::gateway {
namespace {

constexpr std::string_view kOpen = "<tool_call>";
constexpr std::string_view kClose = "</tool_call>";
constexpr std::string_view kPythonTag = "<|python_tag|>";

// The arguments in the order in which the model wrote them.
std::optional<std::string> ArgumentsOf(const Json& call) {
  for (const char* const key : {"arguments", "parameters"}) {
    const auto found = call.find(key);
    if (found == call.end()) continue;
    if (found->is_object()) return found->dump();
    if (!found->is_string()) return std::nullopt;
    const std::string text = found->get<std::string>();
    const auto inner = ParseStrictJson(text);
    if (!inner.ok() || !inner->is_object()) return std::nullopt;
    return text;
  }
  return "{}";
}

}  // namespace

std::string ToolCallParser::Opening(ToolForm form, const std::string& function) {
  const std::string begin = form == ToolForm::kHermes ? absl::StrCat(std::string(kOpen), "\n") : "";
  if (function.empty()) return absl::StrCat(begin, "{\"name\": \"");
  return absl::StrCat(begin, "{\"name\": ", JsonString(function), ", \"",
                      form == ToolForm::kHermes ? "arguments" : "parameters", "\": {");
}

void ToolCallParser::AddText(std::string_view text, Pieces* pieces) {
  AppendPiece(AnswerPiece::Kind::kText, text, pieces);
}

bool ToolCallParser::AddCall(std::string_view json, Pieces* pieces) {
  const auto call = ParseStrictJson(json);
  if (!call.ok() || !call->is_object()) return false;
  const auto name = call->find("name");
  if (name == call->end() || !name->is_string()) return false;
  if (!names_.contains(name->get<std::string>())) return false;
  std::optional<std::string> arguments = ArgumentsOf(*call);
  if (!arguments.has_value()) return false;
  pieces->push_back({AnswerPiece::Kind::kCallBegin, name->get<std::string>()});
  pieces->push_back({AnswerPiece::Kind::kCallArguments, *std::move(arguments)});
  pieces->push_back({AnswerPiece::Kind::kCallEnd, ""});
  has_calls_ = true;
  return true;
}

size_t ToolCallParser::FindObjectEnd(size_t begin) {
  for (scanned_ = std::max(scanned_, begin); scanned_ < held_.size(); ++scanned_) {
    const char c = held_[scanned_];
    if (escaped_) {
      escaped_ = false;
    } else if (in_string_) {
      escaped_ = c == '\\';
      in_string_ = c != '"';
    } else if (c == '"') {
      in_string_ = true;
    } else if (c == '{') {
      ++depth_;
    } else if (c == '}' && --depth_ == 0) {
      return scanned_ + 1;
    }
  }
  return 0;
}

void ToolCallParser::Drop(size_t bytes) {
  held_.erase(0, bytes);
  scanned_ = 0;
  depth_ = 0;
  in_string_ = escaped_ = false;
}

// Returns whether there is more to do with what is held.
bool ToolCallParser::StepHermes(bool ended, Pieces* pieces) {
  if (!inside_) {
    const size_t open = held_.find(kOpen);
    if (open != std::string::npos) {
      AddText(WithoutTrailingSpace(std::string_view(held_).substr(0, open)), pieces);
      Drop(open + kOpen.size());
      inside_ = true;
      return true;
    }
    std::string_view free(held_);
    if (!ended) {
      free.remove_suffix(PartialTagBytes(free, kOpen));
      free = WithoutTrailingSpace(free);
    } else if (has_calls_) {
      free = WithoutTrailingSpace(free);
    }
    AddText(free, pieces);
    Drop(ended ? std::string::npos : free.size());
    return false;
  }
  const size_t close = held_.find(kClose, scanned_ - std::min(scanned_, kClose.size()));
  scanned_ = held_.size();
  if (close == std::string::npos && !ended) return false;
  const std::string body = held_.substr(0, close);
  if (!AddCall(body, pieces)) {
    AddText(absl::StrCat(std::string(kOpen), body,
                         close == std::string::npos ? "" : std::string(kClose)),
            pieces);
  }
  Drop(close == std::string::npos ? close : close + kClose.size());
  inside_ = false;
  return !held_.empty();
}

bool ToolCallParser::StepLlama(bool ended, Pieces* pieces) {
  if (is_text_) {
    AddText(held_, pieces);
    Drop(held_.size());
    return false;
  }
  size_t begin = held_.find_first_not_of(has_calls_ ? " \t\r\n;" : kWhiteSpace);
  if (begin == std::string::npos) {
    if (has_calls_ && ended) Drop(held_.size());
    if (has_calls_ || !ended) return false;
  } else {
    const std::string_view rest = std::string_view(held_).substr(begin);
    if (!ended && rest.size() < kPythonTag.size() && kPythonTag.substr(0, rest.size()) == rest) {
      return false;
    }
    if (rest.substr(0, kPythonTag.size()) == kPythonTag) {
      begin = held_.find_first_not_of(kWhiteSpace, begin + kPythonTag.size());
    }
    if (begin == std::string::npos && !ended) return false;
  }
  if (begin != std::string::npos && held_[begin] == '{') {
    const size_t end = FindObjectEnd(begin);
    if (end == 0 && !ended) return false;
    if (end > 0 && AddCall(std::string_view(held_).substr(begin, end - begin), pieces)) {
      Drop(end);
      return !held_.empty();
    }
  }
  is_text_ = true;
  return true;
}

void ToolCallParser::Append(std::string_view text, Pieces* pieces) {
  if (form_ == ToolForm::kNone) return AddText(text, pieces);
  held_.append(text);
  while (form_ == ToolForm::kHermes ? StepHermes(false, pieces) : StepLlama(false, pieces)) {
  }
}

void ToolCallParser::Finish(Pieces* pieces) {
  if (form_ == ToolForm::kNone) return;
  while (form_ == ToolForm::kHermes ? StepHermes(true, pieces) : StepLlama(true, pieces)) {
  }
}

}  // namespace retroinfer::gateway
