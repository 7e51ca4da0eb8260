#include "http_gateway/api/call_arguments.h"

#include "http_gateway/api/tag_search.h"

namespace retroinfer::gateway {
namespace {

bool IsSpace(char c) { return kWhiteSpace.find(c) != std::string_view::npos; }

}  // namespace

CallArguments::Verdict CallArguments::Take(char c, std::string* out) {
  switch (state_) {
    case State::kBegin:
      if (IsSpace(c)) return Verdict::kMore;
      if (c == '"') {
        state_ = State::kString;
      } else if (c == 'n') {
        state_ = State::kNull;
      } else if (c == '{') {
        state_ = State::kObject;
        return TakeOfObject(c, out);
      } else {
        return Verdict::kInvalid;
      }
      return Verdict::kMore;
    case State::kObject:
      return TakeOfObject(c, out);
    case State::kString:
      return TakeOfString(c, out);
    case State::kNull:
      if (c != null_.front()) return Verdict::kInvalid;
      null_.remove_prefix(1);
      return null_.empty() ? End(out) : Verdict::kMore;
    case State::kEnd:
      break;
  }
  return Verdict::kInvalid;
}

CallArguments::Verdict CallArguments::TakeOfObject(char c, std::string* out) {
  switch (object_.Take(c, out)) {
    case JsonScanner::Verdict::kMore:
      return Verdict::kMore;
    case JsonScanner::Verdict::kInvalid:
      return Verdict::kInvalid;
    case JsonScanner::Verdict::kEnd:
      break;
  }
  object_ended_ = true;
  state_ = State::kEnd;
  return Verdict::kEnd;
}

CallArguments::Verdict CallArguments::TakeOfString(char c, std::string* out) {
  std::string meant;
  const JsonStringReader::Verdict verdict = string_.Take(c, &meant);
  if (verdict == JsonStringReader::Verdict::kInvalid) return Verdict::kInvalid;
  for (const char inner : meant) {
    if (object_.IsEmpty() || object_ended_) {
      if (IsSpace(inner)) continue;
      if (inner != '{' || object_ended_) return Verdict::kInvalid;
    }
    if (TakeOfObject(inner, out) == Verdict::kInvalid) return Verdict::kInvalid;
    state_ = State::kString;
  }
  if (verdict == JsonStringReader::Verdict::kMore) return Verdict::kMore;
  if (object_.IsEmpty()) return End(out);
  state_ = State::kEnd;
  return object_ended_ ? Verdict::kEnd : Verdict::kInvalid;
}

// Nothing was given.
CallArguments::Verdict CallArguments::End(std::string* out) {
  out->append("{}");
  state_ = State::kEnd;
  return Verdict::kEnd;
}

}  // namespace retroinfer::gateway
