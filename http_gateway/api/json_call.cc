#include "http_gateway/api/json_call.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "http_gateway/api/tag_search.h"

namespace retroinfer::gateway {
namespace {

using Kind = AnswerPiece::Kind;

constexpr int kDepthMax = 2;           // {"function": {...}}
constexpr size_t kNameBytesMax = 256;  // far longer than a function's may be
constexpr std::string_view kMembers[] = {"name",     "arguments", "parameters", "type",
                                         "function", "id",        "call_id"};

bool IsSpace(char c) { return kWhiteSpace.find(c) != std::string_view::npos; }

}  // namespace

JsonCall::Verdict JsonCall::Go(State state) {
  state_ = state;
  return Verdict::kMore;
}

JsonCall::Verdict JsonCall::Take(char c, Pieces* pieces) {
  switch (state_) {
    case State::kOpen:
      if (c != '{') return Verdict::kNone;
      ++depth_;
      return Go(State::kFirstKey);
    case State::kFirstKey:
    case State::kKey:
      if (IsSpace(c)) return Verdict::kMore;
      if (c == '}' && state_ == State::kFirstKey) return TakeBehind(c, pieces);
      if (c != '"') return Verdict::kNone;
      key_.clear();
      string_ = {};
      return Go(State::kInKey);
    case State::kInKey:
      return TakeKey(c);
    case State::kColon:
      if (IsSpace(c)) return Verdict::kMore;
      return c == ':' ? Go(State::kValue) : Verdict::kNone;
    case State::kValue:
      return IsSpace(c) ? Verdict::kMore : BeginValue(c, pieces);
    case State::kInName:
      return TakeName(c, pieces);
    case State::kArguments:
      return TakeArguments(c, pieces);
    case State::kOther:
      return TakeOther(c, pieces);
    case State::kBehind:
      return TakeBehind(c, pieces);
    case State::kEnd:
      break;
  }
  return Verdict::kNone;
}

JsonCall::Verdict JsonCall::TakeKey(char c) {
  switch (string_.Take(c, &key_)) {
    case JsonStringReader::Verdict::kMore:
      // The rest of a long key is of no interest, and is not kept.
      if (key_.size() > kNameBytesMax) key_.resize(kNameBytesMax);
      return Verdict::kMore;
    case JsonStringReader::Verdict::kInvalid:
      return Verdict::kNone;
    case JsonStringReader::Verdict::kEnd:
      break;
  }
  const bool is_member =
      std::find(std::begin(kMembers), std::end(kMembers), key_) != std::end(kMembers);
  return is_bare_ && !begun_ && !is_member ? Verdict::kNone : Go(State::kColon);
}

JsonCall::Verdict JsonCall::BeginValue(char c, Pieces* pieces) {
  if (key_ == "name" && !begun_) {
    if (c != '"' || has_name_) return Verdict::kNone;
    string_ = {};
    return Go(State::kInName);
  }
  if ((key_ == "arguments" || key_ == "parameters") && !begun_) {
    if (has_arguments_) return Verdict::kNone;
    has_arguments_ = true;
    state_ = State::kArguments;
    return TakeArguments(c, pieces);
  }
  if (key_ == "function" && c == '{' && depth_ < kDepthMax) {
    ++depth_;
    return Go(State::kFirstKey);
  }
  other_ = {};
  state_ = State::kOther;
  return TakeOther(c, pieces);
}

JsonCall::Verdict JsonCall::TakeName(char c, Pieces* pieces) {
  switch (string_.Take(c, &name_)) {
    case JsonStringReader::Verdict::kMore:
      return name_.size() > kNameBytesMax ? Verdict::kNone : Verdict::kMore;
    case JsonStringReader::Verdict::kInvalid:
      return Verdict::kNone;
    case JsonStringReader::Verdict::kEnd:
      break;
  }
  if (!functions_->Has(name_)) return Verdict::kNone;
  has_name_ = true;
  BeginIfKnown(pieces);
  return Go(State::kBehind);
}

JsonCall::Verdict JsonCall::TakeArguments(char c, Pieces* pieces) {
  const CallArguments::Verdict verdict = arguments_.Take(c, &held_arguments_);
  if (verdict == CallArguments::Verdict::kEnd) arguments_ended_ = true;
  BeginIfKnown(pieces);
  if (verdict == CallArguments::Verdict::kMore) return Verdict::kMore;
  if (verdict == CallArguments::Verdict::kEnd) return Go(State::kBehind);
  Finish(pieces);
  return Verdict::kNone;
}

JsonCall::Verdict JsonCall::TakeOther(char c, Pieces* pieces) {
  std::string ignored;
  switch (other_.Take(c, &ignored)) {
    case JsonScanner::Verdict::kMore:
      return Verdict::kMore;
    case JsonScanner::Verdict::kEnd:
      return Go(State::kBehind);
    case JsonScanner::Verdict::kInvalid:
      break;
  }
  // Behind a number comes a byte that is no part of it.
  return other_.CanEnd() ? TakeBehind(c, pieces) : Verdict::kNone;
}

JsonCall::Verdict JsonCall::TakeBehind(char c, Pieces* pieces) {
  if (IsSpace(c)) return Go(State::kBehind);
  if (c == ',') return Go(State::kKey);
  if (c != '}') return Verdict::kNone;
  if (--depth_ > 0) return Go(State::kBehind);
  state_ = State::kEnd;
  if (!begun_) {
    if (!has_name_ || is_bare_) return Verdict::kNone;
    held_arguments_ = "{}";
    arguments_ended_ = true;
    BeginIfKnown(pieces);
  }
  return Verdict::kEnd;
}

void JsonCall::BeginIfKnown(Pieces* pieces) {
  if (!has_name_ || (!begun_ && held_arguments_.empty())) return;
  if (!begun_) pieces->push_back({Kind::kCallBegin, name_});
  begun_ = true;
  AppendPiece(Kind::kCallArguments, std::exchange(held_arguments_, ""), pieces);
  if (arguments_ended_) Finish(pieces);
}

void JsonCall::Finish(Pieces* pieces) {
  if (!begun_ || ended_) return;
  ended_ = true;
  pieces->push_back({Kind::kCallEnd, ""});
}

}  // namespace retroinfer::gateway
