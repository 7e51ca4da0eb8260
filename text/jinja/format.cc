#include "text/jinja/format.h"

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>

#include "common/status/status_macros.h"
#include "text/jinja/characters.h"
#include "text/jinja/errors.h"
#include "text/jinja/operators.h"
#include "text/jinja/printing.h"
#include "text/jinja/text_functions.h"

namespace retroinfer::jinja {
namespace {

constexpr int kWidthMax = 10'000;

struct Spec {
  char alignment = 0;  // '<', '>', '^'; 0: by type
  std::string fill = " ";
  bool thousands = false;
  int width = 0;
  int precision = -1;
  char type = 0;  // 0: as str()
};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Reads the digits at the front of `text`.
absl::StatusOr<int> ReadNumber(std::string_view& text) {
  int number = 0;
  while (!text.empty() && IsDigit(text.front())) {
    number = number * 10 + (text.front() - '0');
    if (number > kWidthMax) {
      return OverLimit({"a format has a number over ", std::to_string(kWidthMax)});
    }
    text.remove_prefix(1);
  }
  return number;
}

// With a comma before each group of three digits of the integer part.
std::string WithThousands(std::string_view digits) {
  const size_t point = std::min(digits.find('.'), digits.size());
  std::string text;
  for (size_t i = 0; i < digits.size(); ++i) {
    const bool follows_digit = i > 0 && IsDigit(digits[i - 1]);
    if (i < point && follows_digit && (point - i) % 3 == 0) text.push_back(',');
    text.push_back(digits[i]);
  }
  return text;
}

std::string HexText(Int number) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  const bool negative = number < 0;
  std::string text;
  for (Int rest = negative ? -number : number; rest != 0; rest /= 16) {
    text.push_back(kDigits[static_cast<size_t>(rest % 16)]);
  }
  if (text.empty()) text.push_back('0');
  if (negative) text.push_back('-');
  std::reverse(text.begin(), text.end());
  return text;
}

absl::StatusOr<std::string> NumberText(const Value& value, const Spec& spec) {
  if (spec.type == 'd' || spec.type == 'x') {
    std::optional<Int> number = value.AsInt();
    if (!number.has_value()) {
      ASSIGN_OR_RETURN(const double floating, ToDouble(value));
      if (!(floating > -1e30 && floating < 1e30)) return Error({"the number is too large"});
      number = static_cast<Int>(floating);
    }
    return spec.type == 'd' ? IntText(*number) : HexText(*number);
  }
  ASSIGN_OR_RETURN(const double number, ToDouble(value));
  const int precision = spec.precision < 0 ? 6 : spec.precision;
  const int length = std::snprintf(nullptr, 0, "%.*f", precision, number);
  std::string text(static_cast<size_t>(length) + 1, '\0');
  std::snprintf(text.data(), text.size(), "%.*f", precision, number);
  text.pop_back();
  return text;
}

absl::StatusOr<Text> Render(Workspace& workspace, const Value& value, const Spec& spec) {
  Text text;
  char alignment = spec.alignment;
  if (spec.type == 'd' || spec.type == 'x' || spec.type == 'f') {
    ASSIGN_OR_RETURN(std::string number, NumberText(value, spec));
    if (spec.thousands) number = WithThousands(number);
    if (spec.fill == "0" && alignment == 0) {
      const size_t sign = number.front() == '-' ? 1 : 0;
      const auto width = static_cast<size_t>(spec.width);
      if (number.size() < width) number.insert(sign, width - number.size(), '0');
    }
    text = Text(number, false);
    if (alignment == 0) alignment = '>';
  } else {
    ASSIGN_OR_RETURN(text, spec.type == 'r' ? Repr(workspace, value) : Str(workspace, value));
    if (spec.precision >= 0) {
      const size_t end = OffsetOfCharacter(text.bytes(), static_cast<size_t>(spec.precision));
      text = text.Part(0, end);
    }
    if (alignment == 0) alignment = '<';
  }
  const int back_share = alignment == '<' ? 2 : alignment == '^' ? 1 : 0;
  return Pad(workspace, text, spec.width, spec.fill, back_share);
}

// Reads flags, width, precision and type of a %-conversion.
absl::StatusOr<Spec> ReadPercentSpec(std::string_view& rest) {
  Spec spec;
  spec.alignment = 0;
  bool left = false;
  for (; !rest.empty() && (rest.front() == '-' || rest.front() == '0'); rest.remove_prefix(1)) {
    left |= rest.front() == '-';
    if (rest.front() == '0') spec.fill.assign(1, '0');
  }
  ASSIGN_OR_RETURN(spec.width, ReadNumber(rest));
  if (!rest.empty() && rest.front() == '.') {
    rest.remove_prefix(1);
    ASSIGN_OR_RETURN(spec.precision, ReadNumber(rest));
  }
  if (rest.empty()) return Error({"incomplete format"});
  spec.type = rest.front();
  rest.remove_prefix(1);
  if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
  if (std::string_view("srdfx").find(spec.type) == std::string_view::npos) {
    return Unsupported({"the format %", {&spec.type, 1}});
  }
  const bool is_text = spec.type == 's' || spec.type == 'r';
  if (left || is_text) spec.fill.assign(1, ' ');
  spec.alignment = left ? '<' : is_text ? '>' : 0;
  return spec;
}

// Reads what is behind the colon of a field.
absl::StatusOr<Spec> ReadBraceSpec(std::string_view rest) {
  Spec spec;
  constexpr std::string_view kAlignments = "<>^";
  if (!rest.empty()) {
    const size_t fill = FirstCharacter(rest).length;
    if (fill < rest.size() && kAlignments.find(rest[fill]) != std::string_view::npos) {
      spec.fill = std::string(rest.substr(0, fill));
      spec.alignment = rest[fill];
      rest.remove_prefix(fill + 1);
    } else if (kAlignments.find(rest.front()) != std::string_view::npos) {
      spec.alignment = rest.front();
      rest.remove_prefix(1);
    }
  }
  if (!rest.empty() && rest.front() == '0' && spec.alignment == 0) spec.fill.assign(1, '0');
  ASSIGN_OR_RETURN(spec.width, ReadNumber(rest));
  if (!rest.empty() && rest.front() == ',') {
    spec.thousands = true;
    rest.remove_prefix(1);
  }
  if (!rest.empty() && rest.front() == '.') {
    rest.remove_prefix(1);
    ASSIGN_OR_RETURN(spec.precision, ReadNumber(rest));
  }
  if (!rest.empty()) {
    spec.type = rest.front();
    rest.remove_prefix(1);
  }
  if (!rest.empty() ||
      (spec.type != 0 && std::string_view("sdfx").find(spec.type) == std::string_view::npos)) {
    return Unsupported({"this format of a field"});
  }
  return spec;
}

// A value without a type in its field: numbers are aligned as numbers.
void ChooseType(const Value& value, Spec& spec) {
  if (spec.type != 0) return;
  if (value.is_int()) spec.type = 'd';
  if (value.AsFloat() != nullptr && spec.precision >= 0) spec.type = 'f';
}

// The values of a %-format, taken one by one.
class PercentValues {
 public:
  explicit PercentValues(const Value& values) : values_(values) {
    const Sequence* const sequence = values.AsSequence();
    if (sequence != nullptr && sequence->kind == Sequence::Kind::kTuple) tuple_ = sequence;
  }

  absl::StatusOr<Value> Next() {
    const size_t index = next_++;
    if (tuple_ == nullptr && index == 0) return values_;
    if (tuple_ != nullptr && index < tuple_->items.size()) return tuple_->items[index];
    return Error({"not enough arguments for format string"});
  }

  absl::StatusOr<Value> Named(std::string_view name) {
    const Dict* const dict = values_.AsDict();
    if (dict == nullptr) return Error({"format requires a mapping"});
    used_names_ = true;
    const Value* const found = dict->Find(name);
    if (found == nullptr) return Error({"the format's key '", name, "' is missing"});
    return *found;
  }

  absl::Status CheckAllTaken() const {
    const size_t count = tuple_ != nullptr ? tuple_->items.size() : 1;
    if (used_names_ || next_ >= count || (tuple_ == nullptr && values_.AsDict() != nullptr)) {
      return absl::OkStatus();
    }
    return Error({"not all arguments converted during string formatting"});
  }

 private:
  const Value& values_;
  const Sequence* tuple_ = nullptr;
  size_t next_ = 0;
  bool used_names_ = false;
};

}  // namespace

absl::StatusOr<Value> FormatPercent(Workspace& workspace, const Text& format, const Value& values) {
  PercentValues source(values);
  Text out;
  const std::string_view bytes = format.bytes();
  for (size_t at = 0; at < bytes.size();) {
    const size_t percent = std::min(bytes.find('%', at), bytes.size());
    out.AppendPart(format, at, percent);
    if (percent == bytes.size()) break;
    std::string_view rest = bytes.substr(percent + 1);
    if (!rest.empty() && rest.front() == '%') {
      out.AppendPart(format, percent, percent + 1);
      at = percent + 2;
      continue;
    }
    std::optional<Value> named;
    if (!rest.empty() && rest.front() == '(') {
      const size_t end = rest.find(')');
      if (end == std::string_view::npos) return Error({"incomplete format key"});
      ASSIGN_OR_RETURN(named, source.Named(rest.substr(1, end - 1)));
      rest.remove_prefix(end + 1);
    }
    ASSIGN_OR_RETURN(const Spec spec, ReadPercentSpec(rest));
    if (!named.has_value()) {
      ASSIGN_OR_RETURN(named, source.Next());
    }
    ASSIGN_OR_RETURN(const Text text, Render(workspace, *named, spec));
    out.Append(text);
    RETURN_IF_ERROR(workspace.CheckRoom(out.size()));
    at = bytes.size() - rest.size();
  }
  RETURN_IF_ERROR(source.CheckAllTaken());
  return workspace.String(std::move(out));
}

absl::StatusOr<Value> FormatBraces(Workspace& workspace, const Text& format,
                                   const Arguments& arguments) {
  Text out;
  const std::string_view bytes = format.bytes();
  size_t next = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t brace = std::min(bytes.find_first_of("{}", at), bytes.size());
    out.AppendPart(format, at, brace);
    if (brace == bytes.size()) break;
    if (brace + 1 < bytes.size() && bytes[brace + 1] == bytes[brace]) {
      out.AppendPart(format, brace, brace + 1);
      at = brace + 2;
      continue;
    }
    const size_t end = bytes.find('}', brace);
    if (bytes[brace] == '}' || end == std::string_view::npos) {
      return Error({"format(): a brace has no partner"});
    }
    const std::string_view field = bytes.substr(brace + 1, end - brace - 1);
    std::string_view name = field.substr(0, field.find(':'));
    ASSIGN_OR_RETURN(Spec spec,
                     ReadBraceSpec(name.size() < field.size() ? field.substr(name.size() + 1)
                                                              : std::string_view()));
    const std::string whole(name);
    const Value* value = nullptr;
    if (name.empty() || IsDigit(name.front())) {
      ASSIGN_OR_RETURN(const int index, ReadNumber(name));
      const size_t place = whole.empty() ? next++ : static_cast<size_t>(index);
      if (place < arguments.positional.size()) value = &arguments.positional[place];
    } else {
      for (const auto& [key, item] : arguments.named) {
        if (key == name) value = &item;
      }
      name = {};
    }
    if (!name.empty()) return Unsupported({"the field {", field, "}"});
    if (value == nullptr) return Error({"format() has no value for {", field, "}"});
    ChooseType(*value, spec);
    ASSIGN_OR_RETURN(const Text text, Render(workspace, *value, spec));
    out.Append(text);
    RETURN_IF_ERROR(workspace.CheckRoom(out.size()));
    at = end + 1;
  }
  return workspace.String(std::move(out));
}

}  // namespace retroinfer::jinja
