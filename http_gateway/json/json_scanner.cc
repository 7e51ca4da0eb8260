#include "http_gateway/json/json_scanner.h"

#include "absl/strings/ascii.h"
#include "http_gateway/json/json_text.h"

namespace retroinfer::gateway {
namespace {

bool IsSpace(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20; }

}  // namespace

JsonScanner::Verdict JsonScanner::Take(char c, std::string* out) {
  const bool is_raw_control = IsControl(c) && state_ == State::kString;
  const Verdict verdict = Step(c);
  if (verdict == Verdict::kInvalid) return verdict;
  if (is_raw_control) {
    const std::string escaped = JsonString({&c, 1});
    out->append(escaped, 1, escaped.size() - 2);
  } else {
    out->push_back(c);
  }
  return verdict;
}

bool JsonScanner::CanEnd() const {
  if (depth_ > 0) return false;
  return state_ == State::kEnd || state_ == State::kZero || state_ == State::kDigits ||
         state_ == State::kFraction || state_ == State::kExponentDigits;
}

JsonScanner::Verdict JsonScanner::Step(char c) {
  switch (state_) {
    case State::kValue:
    case State::kFirstItem:
      return StepValue(c);
    case State::kFirstKey:
    case State::kKey:
      if (IsSpace(c)) return Verdict::kMore;
      if (c == '}' && state_ == State::kFirstKey) return Pop();
      if (c != '"') return Verdict::kInvalid;
      state_ = State::kString;
      is_key_ = true;
      return Verdict::kMore;
    case State::kColon:
      if (IsSpace(c)) return Verdict::kMore;
      if (c != ':') return Verdict::kInvalid;
      state_ = State::kValue;
      return Verdict::kMore;
    case State::kBehind:
      return StepBehind(c);
    case State::kString:
    case State::kEscape:
    case State::kHex:
      return StepString(c);
    case State::kLiteral:
      if (c != literal_.front()) return Verdict::kInvalid;
      literal_.remove_prefix(1);
      return literal_.empty() ? EndValue() : Verdict::kMore;
    case State::kEnd:
      return Verdict::kInvalid;
    default: {
      bool is_number = true;
      const Verdict verdict = StepNumber(c, &is_number);
      if (is_number || depth_ == 0) return verdict;
      const State number = state_;
      state_ = State::kBehind;
      const Verdict behind = StepBehind(c);
      if (behind == Verdict::kInvalid) state_ = number;
      return behind;
    }
  }
}

JsonScanner::Verdict JsonScanner::StepValue(char c) {
  if (IsSpace(c)) return Verdict::kMore;
  if (c == ']' && state_ == State::kFirstItem) return Pop();
  if (c == '{' || c == '[') return Push(c == '{');
  if (c == '"') {
    is_key_ = false;
    state_ = State::kString;
  } else if (c == '-') {
    state_ = State::kMinus;
  } else if (absl::ascii_isdigit(static_cast<unsigned char>(c))) {
    state_ = c == '0' ? State::kZero : State::kDigits;
  } else if (c == 't' || c == 'f' || c == 'n') {
    literal_ = c == 't' ? "rue" : c == 'f' ? "alse" : "ull";
    state_ = State::kLiteral;
  } else {
    return Verdict::kInvalid;
  }
  return Verdict::kMore;
}

JsonScanner::Verdict JsonScanner::StepString(char c) {
  if (state_ == State::kEscape) {
    if (std::string_view("\"\\/bfnrtu").find(c) == std::string_view::npos) {
      return Verdict::kInvalid;
    }
    state_ = c == 'u' ? State::kHex : State::kString;
    hex_left_ = 4;
  } else if (state_ == State::kHex) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) return Verdict::kInvalid;
    if (--hex_left_ == 0) state_ = State::kString;
  } else if (c == '\\') {
    state_ = State::kEscape;
  } else if (c == '"') {
    if (!is_key_) return EndValue();
    state_ = State::kColon;
  }
  return Verdict::kMore;
}

JsonScanner::Verdict JsonScanner::StepNumber(char c, bool* is_number) {
  const bool is_digit = absl::ascii_isdigit(static_cast<unsigned char>(c));
  switch (state_) {
    case State::kMinus:
      if (!is_digit) return Verdict::kInvalid;
      state_ = c == '0' ? State::kZero : State::kDigits;
      return Verdict::kMore;
    case State::kPoint:
      if (!is_digit) return Verdict::kInvalid;
      state_ = State::kFraction;
      return Verdict::kMore;
    case State::kExponent:
    case State::kExponentSign:
      if (is_digit) {
        state_ = State::kExponentDigits;
      } else if (state_ == State::kExponent && (c == '+' || c == '-')) {
        state_ = State::kExponentSign;
      } else {
        return Verdict::kInvalid;
      }
      return Verdict::kMore;
    default:
      break;
  }
  if (is_digit && state_ != State::kZero) return Verdict::kMore;
  if (c == '.' && (state_ == State::kZero || state_ == State::kDigits)) {
    state_ = State::kPoint;
  } else if ((c == 'e' || c == 'E') && state_ != State::kExponentDigits) {
    state_ = State::kExponent;
  } else {
    *is_number = false;
    return Verdict::kInvalid;
  }
  return Verdict::kMore;
}

JsonScanner::Verdict JsonScanner::StepBehind(char c) {
  if (IsSpace(c)) return Verdict::kMore;
  if (c == ',') {
    state_ = in_object() ? State::kKey : State::kValue;
    return Verdict::kMore;
  }
  return c == (in_object() ? '}' : ']') ? Pop() : Verdict::kInvalid;
}

JsonScanner::Verdict JsonScanner::Push(bool is_object) {
  if (depth_ == kDepthMax) return Verdict::kInvalid;
  const uint64_t bit = uint64_t{1} << depth_;
  objects_ = is_object ? objects_ | bit : objects_ & ~bit;
  ++depth_;
  state_ = is_object ? State::kFirstKey : State::kFirstItem;
  return Verdict::kMore;
}

JsonScanner::Verdict JsonScanner::Pop() {
  --depth_;
  return EndValue();
}

JsonScanner::Verdict JsonScanner::EndValue() {
  state_ = depth_ > 0 ? State::kBehind : State::kEnd;
  return depth_ > 0 ? Verdict::kMore : Verdict::kEnd;
}

}  // namespace retroinfer::gateway
