#include "text/jinja/printing.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <string_view>

#include "common/status/status_macros.h"
#include "text/jinja/characters.h"
#include "text/jinja/errors.h"

namespace retroinfer::jinja {
namespace {

std::string Hex(char32_t code, const char* format) {
  std::array<char, 16> buffer;
  std::snprintf(buffer.data(), buffer.size(), format, static_cast<unsigned>(code));
  return buffer.data();
}

// Appends what `escape` makes of each character of `text`; nullptr leaves a character as it is.
template <typename Escape>
void AppendEscaped(const Text& text, Text& out, const Escape& escape) {
  const std::string_view bytes = text.bytes();
  size_t run_begin = 0;
  for (const Text::Run& run : text.runs()) {
    size_t plain_begin = run_begin;
    for (size_t at = run_begin; at < run.end;) {
      const Character character = FirstCharacter(bytes.substr(at));
      const std::string escaped = escape(character.code);
      if (!escaped.empty()) {
        out.Append(bytes.substr(plain_begin, at - plain_begin), run.of_template);
        out.Append(escaped, run.of_template);
        plain_begin = at + character.length;
      }
      at += character.length;
    }
    out.Append(bytes.substr(plain_begin, run.end - plain_begin), run.of_template);
    run_begin = run.end;
  }
}

void AppendRepr(const Text& text, Text& out) {
  const bool double_quotes =
      text.bytes().find('\'') != std::string::npos && text.bytes().find('"') == std::string::npos;
  const char quote = double_quotes ? '"' : '\'';
  out.Append({&quote, 1}, false);
  AppendEscaped(text, out, [quote](char32_t code) -> std::string {
    if (code == '\\') return "\\\\";
    if (code == static_cast<char32_t>(quote)) return {'\\', quote};
    if (code == '\n') return "\\n";
    if (code == '\r') return "\\r";
    if (code == '\t') return "\\t";
    if (code >= 0x20 && code < 0x7F) return {};
    if (IsPrintable(code)) return {};
    if (code < 0x100) return Hex(code, "\\x%02x");
    return code < 0x10000 ? Hex(code, "\\u%04x") : Hex(code, "\\U%08x");
  });
  out.Append({&quote, 1}, false);
}

struct Brackets {
  std::string_view begin;
  std::string_view end;
};

absl::StatusOr<Brackets> BracketsOf(const Value& value) {
  switch (value.AsSequence()->kind) {
    case Sequence::Kind::kList:
      return Brackets{"[", "]"};
    case Sequence::Kind::kTuple:
      return Brackets{"(", value.AsSequence()->items.size() == 1 ? ",)" : ")"};
    case Sequence::Kind::kKeys:
      return Brackets{"dict_keys([", "])"};
    case Sequence::Kind::kValues:
      return Brackets{"dict_values([", "])"};
    case Sequence::Kind::kItems:
      return Brackets{"dict_items([", "])"};
    case Sequence::Kind::kRange:
    case Sequence::Kind::kGenerator:
      break;
  }
  return Unsupported({"a ", value.TypeName(), " cannot be shown; make it a list"});
}

absl::Status AppendRepr(Workspace& workspace, const Value& value, Text& out) {
  RETURN_IF_ERROR(workspace.Spend(1));
  RETURN_IF_ERROR(workspace.CheckRoom(out.size()));
  if (value.AsText() != nullptr) {
    RETURN_IF_ERROR(workspace.Expect(value.AsText()->size()));
    AppendRepr(*value.AsText(), out);
  } else if (value.is_undefined()) {
    out.Append("Undefined", false);
  } else if (value.AsSequence() != nullptr) {
    ASSIGN_OR_RETURN(const Brackets brackets, BracketsOf(value));
    out.Append(brackets.begin, false);
    bool first = true;
    for (const Value& item : value.AsSequence()->items) {
      if (!first) out.Append(", ", false);
      first = false;
      RETURN_IF_ERROR(AppendRepr(workspace, item, out));
    }
    out.Append(brackets.end, false);
  } else if (value.AsDict() != nullptr) {
    out.Append("{", false);
    bool first = true;
    for (const Dict::Entry& entry : value.AsDict()->entries) {
      if (!first) out.Append(", ", false);
      first = false;
      RETURN_IF_ERROR(AppendRepr(workspace, entry.first, out));
      out.Append(": ", false);
      RETURN_IF_ERROR(AppendRepr(workspace, entry.second, out));
    }
    out.Append("}", false);
  } else {
    ASSIGN_OR_RETURN(const Text text, Str(workspace, value));
    out.Append(text);
  }
  return absl::OkStatus();
}

// Writes a value of JSON.
class JsonWriter {
 public:
  JsonWriter(Workspace& workspace, const JsonStyle& style) : workspace_(workspace), style_(style) {}

  absl::Status Write(const Value& value) {
    RETURN_IF_ERROR(workspace_.Spend(1));
    RETURN_IF_ERROR(workspace_.CheckRoom(out_.size()));
    if (value.AsText() != nullptr) return WriteString(*value.AsText());
    if (value.AsDict() != nullptr) return WriteDict(*value.AsDict());
    const Sequence* const sequence = value.AsSequence();
    if (sequence != nullptr &&
        (sequence->kind == Sequence::Kind::kList || sequence->kind == Sequence::Kind::kTuple)) {
      return WriteList(sequence->items);
    }
    ASSIGN_OR_RETURN(const std::string text, Scalar(value));
    out_.Append(text, false);
    return absl::OkStatus();
  }

  Text Take() { return std::move(out_); }

 private:
  static absl::StatusOr<std::string> Scalar(const Value& value) {
    if (value.is_none()) return std::string("null");
    if (value.AsBool() != nullptr) return std::string(*value.AsBool() ? "true" : "false");
    if (value.is_int()) return IntText(*value.AsInt());
    if (const double* const number = value.AsFloat()) {
      if (std::isnan(*number)) return std::string("NaN");
      if (std::isinf(*number)) return std::string(*number < 0 ? "-Infinity" : "Infinity");
      return FloatText(*number);
    }
    return Error({"Object of type ", value.TypeName(), " is not JSON serializable"});
  }

  absl::Status WriteString(const Text& text) {
    RETURN_IF_ERROR(workspace_.Expect(text.size()));
    out_.Append("\"", false);
    const bool ascii_only = style_.ascii_only;
    AppendEscaped(text, out_, [ascii_only](char32_t code) -> std::string {
      if (code == '"') return "\\\"";
      if (code == '\\') return "\\\\";
      if (code == '\n') return "\\n";
      if (code == '\r') return "\\r";
      if (code == '\t') return "\\t";
      if (code == '\b') return "\\b";
      if (code == '\f') return "\\f";
      if (code >= 0x20 && (code < 0x7F || !ascii_only)) return {};
      if (code == 0x7F) return {};
      if (code < 0x10000) return Hex(code, "\\u%04x");
      const char32_t rest = code - 0x10000;
      return Hex(0xD800 + (rest >> 10), "\\u%04x") + Hex(0xDC00 + (rest & 0x3FF), "\\u%04x");
    });
    out_.Append("\"", false);
    return absl::OkStatus();
  }

  absl::Status WriteList(const Values& items) {
    if (items.empty()) {
      out_.Append("[]", false);
      return absl::OkStatus();
    }
    out_.Append("[", false);
    ++level_;
    for (size_t i = 0; i < items.size(); ++i) {
      RETURN_IF_ERROR(BeginItem(i == 0));
      RETURN_IF_ERROR(Write(items[i]));
    }
    --level_;
    RETURN_IF_ERROR(BreakLine());
    out_.Append("]", false);
    return absl::OkStatus();
  }

  absl::Status WriteDict(const Dict& dict) {
    if (dict.entries.empty()) {
      out_.Append("{}", false);
      return absl::OkStatus();
    }
    std::vector<std::pair<Text, const Value*>> entries;
    for (const Dict::Entry& entry : dict.entries) {
      ASSIGN_OR_RETURN(Text key, Key(entry.first));
      entries.emplace_back(std::move(key), &entry.second);
    }
    if (style_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) {
        return a.first.bytes() < b.first.bytes();
      });
    }
    out_.Append("{", false);
    ++level_;
    for (size_t i = 0; i < entries.size(); ++i) {
      RETURN_IF_ERROR(BeginItem(i == 0));
      RETURN_IF_ERROR(WriteString(entries[i].first));
      out_.Append(style_.key_separator, false);
      RETURN_IF_ERROR(Write(*entries[i].second));
    }
    --level_;
    RETURN_IF_ERROR(BreakLine());
    out_.Append("}", false);
    return absl::OkStatus();
  }

  absl::StatusOr<Text> Key(const Value& key) {
    RETURN_IF_ERROR(workspace_.Spend(1));
    if (key.AsText() != nullptr) return *key.AsText();
    ASSIGN_OR_RETURN(const std::string text, Scalar(key));
    return Text(text, false);
  }

  absl::Status BeginItem(bool first) {
    if (!first) out_.Append(style_.item_separator, false);
    return BreakLine();
  }

  absl::Status BreakLine() {
    if (!style_.indent.has_value()) return absl::OkStatus();
    RETURN_IF_ERROR(workspace_.CheckRoom(out_.size()));
    RETURN_IF_ERROR(workspace_.Expect(style_.indent->size() * level_));
    out_.Append("\n", false);
    for (size_t i = 0; i < level_; ++i) out_.Append(*style_.indent, false);
    return absl::OkStatus();
  }

  Workspace& workspace_;
  const JsonStyle& style_;
  Text out_;
  size_t level_ = 0;
};

}  // namespace

std::string IntText(Int number) {
  if (number == 0) return "0";
  const bool negative = number < 0;
  std::string digits;
  for (; number != 0; number /= 10) {
    const int digit = static_cast<int>(number % 10);
    digits.push_back(static_cast<char>('0' + (digit < 0 ? -digit : digit)));
  }
  if (negative) digits.push_back('-');
  std::reverse(digits.begin(), digits.end());
  return digits;
}

std::string FloatText(double number) {
  if (std::isnan(number)) return "nan";
  if (std::isinf(number)) return number < 0 ? "-inf" : "inf";
  std::array<char, 64> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number,
                                 std::chars_format::scientific)
                       .ptr;
  const std::string_view shortest(buffer.data(), static_cast<size_t>(end - buffer.data()));
  const size_t e = shortest.find('e');
  const int exponent = std::atoi(std::string(shortest.substr(e + 1)).c_str());
  std::string digits(shortest.substr(0, e));
  std::string sign;
  if (digits.front() == '-') {
    sign = "-";
    digits.erase(0, 1);
  }
  if (exponent < -4 || exponent >= 16) return std::string(shortest);
  digits.erase(std::remove(digits.begin(), digits.end(), '.'), digits.end());
  const auto count = static_cast<int>(digits.size());
  if (exponent < 0) {
    return Concat({sign, "0.", std::string(static_cast<size_t>(-exponent - 1), '0'), digits});
  }
  if (count <= exponent + 1) {
    return Concat(
        {sign, digits, std::string(static_cast<size_t>(exponent + 1 - count), '0'), ".0"});
  }
  digits.insert(static_cast<size_t>(exponent + 1), 1, '.');
  return sign + digits;
}

absl::StatusOr<Text> Str(Workspace& workspace, const Value& value) {
  if (value.AsText() != nullptr) return *value.AsText();
  if (value.is_undefined()) return Text();
  if (value.is_none()) return Text("None", false);
  if (value.AsBool() != nullptr) return Text(*value.AsBool() ? "True" : "False", false);
  if (value.is_int()) return Text(IntText(*value.AsInt()), false);
  if (value.AsFloat() != nullptr) return Text(FloatText(*value.AsFloat()), false);
  if (value.AsObject() != nullptr) {
    return Unsupported({"a ", value.TypeName(), " cannot be shown"});
  }
  return Repr(workspace, value);
}

absl::StatusOr<Text> Repr(Workspace& workspace, const Value& value) {
  Text out;
  RETURN_IF_ERROR(AppendRepr(workspace, value, out));
  return out;
}

absl::StatusOr<Text> ToJson(Workspace& workspace, const Value& value, const JsonStyle& style) {
  JsonWriter writer(workspace, style);
  RETURN_IF_ERROR(writer.Write(value));
  return writer.Take();
}

}  // namespace retroinfer::jinja
