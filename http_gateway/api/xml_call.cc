#include "http_gateway/api/xml_call.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "http_gateway/api/tag_search.h"
#include "http_gateway/json/json_text.h"
#include "http_gateway/json/strict_json.h"

namespace retroinfer::gateway {
namespace {

using Kind = AnswerPiece::Kind;

constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kFunctionEnd = "</function>";
// With the line end before it, which belongs to the tag.
constexpr std::string_view kValueEnd = "\n</parameter>";
constexpr size_t kNameBytesMax = 256;  // also of a parameter

bool IsSpace(char c) { return kWhiteSpace.find(c) != std::string_view::npos; }

bool Begins(std::string_view text, std::string_view beginning) {
  return text.substr(0, beginning.size()) == beginning;
}

// The JSON text of what a model wrote: templates show it Python's words in earlier calls.
std::string JsonOf(std::string_view text, ParameterKind kind) {
  if (kind == ParameterKind::kNullableString) {
    return text == "null" || text == "None" ? "null" : JsonString(text);
  }
  for (const auto& [python, json] :
       {std::pair("True", "true"), std::pair("False", "false"), std::pair("None", "null")}) {
    if (text == python) return json;
  }
  return ParseStrictJson(text).ok() ? std::string(text) : JsonString(text);
}

}  // namespace

XmlCall::Verdict XmlCall::Take(char c, Pieces* pieces) {
  switch (state_) {
    case State::kName:
      return TakeName(c, pieces);
    case State::kBetween:
      return TakeBetween(c, pieces);
    case State::kKey:
      return TakeKey(c, pieces);
    case State::kValue:
      TakeValue(c, pieces);
      return Verdict::kMore;
    case State::kEnd:
      break;
  }
  return Verdict::kNone;
}

void XmlCall::Give(std::string_view arguments, Pieces* pieces) {
  AppendPiece(Kind::kCallArguments, arguments, pieces);
}

XmlCall::Verdict XmlCall::TakeName(char c, Pieces* pieces) {
  if (c != '>') {
    name_.push_back(c);
    return name_.size() > kNameBytesMax ? Verdict::kNone : Verdict::kMore;
  }
  if (!functions_->Has(name_)) return Verdict::kNone;
  begun_ = true;
  pieces->push_back({Kind::kCallBegin, name_});
  Give("{", pieces);
  state_ = State::kBetween;
  return Verdict::kMore;
}

XmlCall::Verdict XmlCall::TakeBetween(char c, Pieces* pieces) {
  if (tag_.empty() && IsSpace(c)) return Verdict::kMore;
  tag_.push_back(c);
  if (tag_ == kParameter) {
    tag_.clear();
    key_.clear();
    state_ = State::kKey;
  } else if (tag_ == kFunctionEnd) {
    tag_.clear();
    Give("}", pieces);
    Finish(pieces);
    state_ = State::kEnd;
    return Verdict::kEnd;
  } else if (!Begins(kParameter, tag_) && !Begins(kFunctionEnd, tag_)) {
    // "</tool_call>": the model has forgotten </function>.
    if (tag_ == "</t") Give("}", pieces);
    tag_.pop_back();
    Finish(pieces);
    return Verdict::kNone;
  }
  return Verdict::kMore;
}

XmlCall::Verdict XmlCall::TakeKey(char c, Pieces* pieces) {
  if (c != '>' && key_.size() < kNameBytesMax) {
    key_.push_back(c);
    return Verdict::kMore;
  }
  if (c != '>' || !keys_.insert(key_).second) {
    tag_ = absl::StrCat(std::string(kParameter), key_);
    Finish(pieces);
    return Verdict::kNone;
  }
  kind_ = functions_->KindOf(name_, key_);
  Give(absl::StrCat(keys_.size() > 1 ? ", " : "", JsonString(key_), ": "), pieces);
  if (kind_ == ParameterKind::kString) Give("\"", pieces);
  at_start_ = true;
  state_ = State::kValue;
  return Verdict::kMore;
}

void XmlCall::TakeValue(char c, Pieces* pieces) {
  if (std::exchange(at_start_, false) && c == '\n') return;
  tag_.push_back(c);
  while (!tag_.empty() && !Begins(kValueEnd, tag_) && !Begins(kValueEnd.substr(1), tag_)) {
    AddToValue(tag_.front(), pieces);
    tag_.erase(0, 1);
  }
  if (tag_ != kValueEnd && tag_ != kValueEnd.substr(1)) return;
  tag_.clear();
  EndValue(pieces);
  state_ = State::kBetween;
}

void XmlCall::AddToValue(char c, Pieces* pieces) {
  if (kind_ != ParameterKind::kString) {
    value_.push_back(c);
    return;
  }
  const std::string quoted = JsonString({&c, 1});
  Give(std::string_view(quoted).substr(1, quoted.size() - 2), pieces);
}

void XmlCall::EndValue(Pieces* pieces) {
  if (kind_ == ParameterKind::kString) return Give("\"", pieces);
  Give(JsonOf(std::exchange(value_, ""), kind_), pieces);
}

void XmlCall::Finish(Pieces* pieces) {
  if (!begun_ || ended_) return;
  ended_ = true;
  if (state_ == State::kValue) {  // cut: what is there is given out as far as it came
    for (const char c : std::exchange(tag_, "")) AddToValue(c, pieces);
    Give(std::exchange(value_, ""), pieces);
  }
  pieces->push_back({Kind::kCallEnd, ""});
}

}  // namespace retroinfer::gateway
