#include "http_gateway/api/tool_call_parser.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "http_gateway/api/tag_search.h"

namespace retroinfer::gateway {
namespace {

using Kind = AnswerPiece::Kind;

constexpr std::string_view kToolCall = "<tool_call>";
constexpr std::string_view kToolCallEnd = "</tool_call>";
constexpr std::string_view kToolCalls = "[TOOL_CALLS]";
constexpr std::string_view kArgumentsTag = "[ARGS]";
constexpr std::string_view kCallIdTag = "[CALL_ID]";
constexpr std::string_view kPythonTag = "<|python_tag|>";
constexpr std::string_view kFence = "```";
constexpr std::string_view kFenceLanguages[] = {"", "json", "tool_call"};
constexpr size_t kNameBytesMax = 256;  // also of an id

bool IsSpace(char c) { return kWhiteSpace.find(c) != std::string_view::npos; }

bool IsOfName(char c) {
  return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
}

// Whether calls have no tag.
bool IsBare(ToolForm form) { return form == ToolForm::kLlama || form == ToolForm::kJson; }

void AddText(std::string_view text, std::vector<AnswerPiece>* pieces) {
  AppendPiece(Kind::kText, text, pieces);
}

}  // namespace

void ToolCallParser::Append(std::string_view text, Pieces* pieces) {
  if (form_ == ToolForm::kNone || form_ == ToolForm::kText) return AddText(text, pieces);
  for (const char c : text) Take(c, pieces);
}

void ToolCallParser::Finish(Pieces* pieces) {
  if (json_.has_value()) json_->Finish(pieces);
  if (xml_.has_value()) xml_->Finish(pieces);
  if (arguments_begun_) pieces->push_back({Kind::kCallEnd, ""});
  arguments_begun_ = false;
  if (place_ == Place::kText) {
    if (!has_calls_ || !tag_.empty()) AddText(space_ + tag_, pieces);
  } else if (place_ == Place::kPassing || !found_) {
    AddText(raw_ + tag_, pieces);
  } else if (place_ != Place::kSeek) {
    AddText(raw_, pieces);  // the beginning of a further call
  }
  raw_.clear();
  space_.clear();
  tag_.clear();
}

void ToolCallParser::Take(char c, Pieces* pieces) {
  switch (place_) {
    case Place::kText:
      return TakeText(c, pieces);
    case Place::kFence:
      return TakeFence(c, pieces);
    case Place::kSeek:
      return TakeSeek(c, pieces);
    case Place::kJson:
      return TakeJson(c, pieces);
    case Place::kXml:
      return TakeXml(c, pieces);
    case Place::kName:
      return TakeName(c, pieces);
    case Place::kId:
      return TakeId(c, pieces);
    case Place::kArguments:
      return TakeArguments(c, pieces);
    case Place::kPassing:
      return TakePassing(c, pieces);
  }
}

std::optional<std::string_view> ToolCallParser::MatchTag(char c, Tags tags) {
  tag_.push_back(c);
  for (const std::string_view tag : tags) {
    if (tag.substr(0, tag_.size()) != tag_) continue;
    if (tag.size() > tag_.size()) return "";
    tag_.clear();
    return tag;
  }
  return std::nullopt;
}

void ToolCallParser::TakeText(char c, Pieces* pieces) {
  std::optional<std::string_view> tag;
  switch (form_) {
    case ToolForm::kHermes:
    case ToolForm::kQwenCoder:
      tag = reads_others_ ? MatchTag(c, {kToolCall, XmlCall::kOpen, kFence})
                          : MatchTag(c, {kToolCall});
      break;
    case ToolForm::kMistral:
    case ToolForm::kMistralArgs:
      tag = reads_others_ ? MatchTag(c, {kToolCalls, kFence}) : MatchTag(c, {kToolCalls});
      break;
    default:
      tag = reads_others_ ? MatchTag(c, {kPythonTag, kFence}) : MatchTag(c, {});
      break;
  }
  if (!tag.has_value()) {
    const std::string text = std::exchange(tag_, "");
    TakePlain(text.front(), pieces);
    for (const char next : text.substr(1)) Take(next, pieces);
  } else if (*tag == kToolCall) {
    Open(*tag, Opener::kToolCall);
  } else if (*tag == XmlCall::kOpen) {
    Open("", Opener::kFunction);
    OpenXml();
  } else if (*tag == kToolCalls) {
    Open(*tag, Opener::kMistral);
  } else if (*tag == kPythonTag) {
    Open(*tag, Opener::kPython);
  } else if (*tag == kFence) {
    Open(*tag, Opener::kFence);
    place_ = Place::kFence;
    name_.clear();
  }
}

// What begins no tag.
void ToolCallParser::TakePlain(char c, Pieces* pieces) {
  if (IsSpace(c)) {
    space_.push_back(c);
  } else if (at_start_ && (reads_others_ || IsBare(form_)) && (c == '{' || c == '[')) {
    Open("", Opener::kBare);
    TakeSeek(c, pieces);
  } else {
    at_start_ = false;
    AddText(std::exchange(space_, ""), pieces);
    AddText({&c, 1}, pieces);
  }
}

void ToolCallParser::Open(std::string_view tag, Opener opener) {
  raw_ = std::exchange(space_, "");
  raw_.append(tag);
  opener_ = opener;
  place_ = Place::kSeek;
  list_ = List::kNone;
  found_ = tried_ = false;
}

void ToolCallParser::OpenXml() {
  raw_.append(XmlCall::kOpen);
  tried_ = true;
  xml_.emplace(functions_);
  place_ = Place::kXml;
}

void ToolCallParser::Close() {
  raw_.clear();
  place_ = Place::kText;
}

void ToolCallParser::Found() {
  if (opener_ == Opener::kToolCall || opener_ == Opener::kMistral) reads_others_ = false;
  found_ = has_calls_ = true;
  at_start_ = false;
  raw_.clear();
}

void ToolCallParser::Leave(char c, Pieces* pieces) {
  json_.reset();
  xml_.reset();
  at_start_ = false;
  const std::string text = std::exchange(raw_, "");
  // A tag that has a call in it, or what was meant for one, is left at its end.
  place_ = opener_ == Opener::kToolCall && tried_ ? Place::kPassing : Place::kText;
  if (place_ == Place::kText && found_ && WithoutTrailingSpace(text).empty()) {
    space_ = text;  // held back as before any other tag
  } else {
    AddText(text, pieces);
  }
  const std::string rest = std::exchange(tag_, "");
  for (const char next : rest) Take(next, pieces);
  Take(c, pieces);
}

void ToolCallParser::TakeFence(char c, Pieces* pieces) {
  if (IsSpace(c) && std::find(std::begin(kFenceLanguages), std::end(kFenceLanguages), name_) !=
                        std::end(kFenceLanguages)) {
    raw_.push_back(c);
    place_ = Place::kSeek;
    return;
  }
  name_.push_back(c);
  for (const std::string_view language : kFenceLanguages) {
    if (language.substr(0, name_.size()) != name_) continue;
    raw_.push_back(c);
    return;
  }
  Leave(c, pieces);
}

void ToolCallParser::TakeSeek(char c, Pieces* pieces) {
  const bool has_end = opener_ != Opener::kBare && opener_ != Opener::kMistral;
  if (!tag_.empty()) return TakeTagOfSeek(c, pieces);
  if (c == '{') {
    const bool is_bare = opener_ == Opener::kBare || opener_ == Opener::kFence;
    json_.emplace(functions_, is_bare);
    place_ = Place::kJson;
    tried_ = true;
    return TakeJson(c, pieces);
  }
  const bool opens_list = c == '[' && !found_ && list_ == List::kNone;
  const bool closes_list = c == ']' && list_ == List::kOpen;
  if (opens_list) list_ = List::kOpen;
  if (closes_list) list_ = List::kClosed;
  // Brackets too many are a habit of small models.
  const bool is_between = found_ && (c == ',' || c == ';' || (has_end && (c == '}' || c == ']')));
  if (IsSpace(c) || opens_list || closes_list || is_between) {
    raw_.push_back(c);
    return;
  }
  if (opener_ == Opener::kMistral && !found_ && list_ == List::kNone && IsOfName(c)) {
    name_.clear();
    place_ = Place::kName;
    return TakeName(c, pieces);
  }
  TakeTagOfSeek(c, pieces);
}

void ToolCallParser::TakeTagOfSeek(char c, Pieces* pieces) {
  std::optional<std::string_view> tag;
  if (opener_ == Opener::kToolCall || opener_ == Opener::kFunction) {
    tag = MatchTag(c, {kToolCallEnd, XmlCall::kOpen});
  } else if (opener_ == Opener::kFence && found_) {
    tag = MatchTag(c, {kFence});
  }
  if (!tag.has_value()) {
    if (!tag_.empty()) tag_.pop_back();  // `c`, where there are tags
    return Leave(c, pieces);
  }
  if (*tag == XmlCall::kOpen) return OpenXml();
  if (tag->empty()) return;
  if (!found_) {
    AddText(raw_, pieces);
    AddText(*tag, pieces);
    at_start_ = false;
  }
  Close();
}

void ToolCallParser::TakeJson(char c, Pieces* pieces) {
  const JsonCall::Verdict verdict = json_->Take(c, pieces);
  const bool begun = json_->begun();
  if (begun) Found();
  switch (verdict) {
    case JsonCall::Verdict::kMore:
      if (!begun) raw_.push_back(c);
      return;
    case JsonCall::Verdict::kEnd:
      json_.reset();
      place_ = Place::kSeek;
      return;
    case JsonCall::Verdict::kNone:
      break;
  }
  if (!begun) return Leave(c, pieces);
  json_.reset();
  place_ = Place::kSeek;
  TakeSeek(c, pieces);
}

void ToolCallParser::TakeXml(char c, Pieces* pieces) {
  const XmlCall::Verdict verdict = xml_->Take(c, pieces);
  const bool begun = xml_->begun();
  if (begun) Found();
  switch (verdict) {
    case XmlCall::Verdict::kMore:
      if (!begun) raw_.push_back(c);
      return;
    case XmlCall::Verdict::kEnd:
      xml_.reset();
      place_ = Place::kSeek;
      return;
    case XmlCall::Verdict::kNone:
      break;
  }
  if (!begun) return Leave(c, pieces);
  const std::string rest = xml_->partial_tag();
  xml_.reset();
  place_ = Place::kSeek;
  for (const char next : rest) Take(next, pieces);
  Take(c, pieces);
}

void ToolCallParser::TakeName(char c, Pieces* pieces) {
  std::optional<std::string_view> tag;
  if (tag_.empty() && IsOfName(c) && name_.size() < kNameBytesMax) {
    name_.push_back(c);
    raw_.push_back(c);
    return;
  }
  if (tag_.empty() && IsSpace(c)) {
    raw_.push_back(c);
    return;
  }
  const bool is_object = tag_.empty() && c == '{';
  if (!is_object) tag = MatchTag(c, {kArgumentsTag, kCallIdTag});
  if (tag.has_value() && tag->empty()) return;
  if (!is_object && !tag.has_value()) {
    tag_.pop_back();  // `c`
    return Leave(c, pieces);
  }
  if (!functions_.Has(name_)) {
    if (tag.has_value()) raw_.append(tag->substr(0, tag->size() - 1));
    return Leave(c, pieces);
  }
  if (tag.has_value()) raw_.append(*tag);
  arguments_ = {};
  place_ = tag == kCallIdTag ? Place::kId : Place::kArguments;
  if (is_object) TakeArguments(c, pieces);
}

void ToolCallParser::TakeId(char c, Pieces* pieces) {
  const std::optional<std::string_view> tag = MatchTag(c, {kArgumentsTag});
  if (!tag.has_value()) {
    raw_.append(std::exchange(tag_, ""));
    if (raw_.size() <= 4 * kNameBytesMax) return;
    raw_.pop_back();
    return Leave(c, pieces);
  }
  if (tag->empty()) return;
  raw_.append(*tag);
  place_ = Place::kArguments;
}

void ToolCallParser::TakeArguments(char c, Pieces* pieces) {
  std::string given;
  const CallArguments::Verdict verdict = arguments_.Take(c, &given);
  if (!given.empty() && !arguments_begun_) {
    Found();
    arguments_begun_ = true;
    pieces->push_back({Kind::kCallBegin, name_});
  }
  AppendPiece(Kind::kCallArguments, given, pieces);
  if (verdict == CallArguments::Verdict::kMore) {
    if (!arguments_begun_) raw_.push_back(c);
    return;
  }
  if (!std::exchange(arguments_begun_, false)) return Leave(c, pieces);
  pieces->push_back({Kind::kCallEnd, ""});
  place_ = Place::kSeek;
  if (verdict == CallArguments::Verdict::kInvalid) TakeSeek(c, pieces);
}

void ToolCallParser::TakePassing(char c, Pieces* pieces) {
  const std::optional<std::string_view> tag = MatchTag(c, {kToolCallEnd});
  if (!tag.has_value()) {
    AddText(tag_.substr(0, 1), pieces);
    const std::string rest = std::exchange(tag_, "").substr(1);
    for (const char next : rest) Take(next, pieces);
  } else if (!tag->empty()) {
    if (!found_) AddText(*tag, pieces);
    Close();
  }
}

}  // namespace retroinfer::gateway
