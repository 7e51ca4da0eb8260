#include "text/jinja/text_filters.h"

#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>

#include "common/status/status_macros.h"
#include "text/jinja/access.h"
#include "text/jinja/call.h"
#include "text/jinja/characters.h"
#include "text/jinja/errors.h"
#include "text/jinja/format.h"
#include "text/jinja/list_filters.h"
#include "text/jinja/operators.h"
#include "text/jinja/printing.h"
#include "text/jinja/text_functions.h"

namespace retroinfer::jinja {
namespace {

using Result = absl::StatusOr<Value>;

template <Text (*kMap)(const Text&)>
Result MapFilter(Workspace& workspace, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(BoundArguments::Bind("a filter", arguments, {}).status());
  ASSIGN_OR_RETURN(const Text text, Str(workspace, input));
  RETURN_IF_ERROR(workspace.Expect(2 * text.size()));
  RETURN_IF_ERROR(workspace.Spend(text.size() / 16));
  return workspace.String(kMap(text));
}

Result TrimFilter(Workspace& workspace, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, BoundArguments::Bind("trim", arguments, {"chars"}));
  ASSIGN_OR_RETURN(const Text text, Str(workspace, input));
  ASSIGN_OR_RETURN(const Text characters, bound.TextOr(0, ""));
  std::optional<std::string_view> stripped;
  if (bound[0] != nullptr && !bound[0]->is_none()) stripped = characters.bytes();
  return workspace.String(Strip(text, stripped, {}));
}

Result ReplaceFilter(Workspace& workspace, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound,
                   BoundArguments::Bind("replace", arguments, {"old", "new", "count"}, 2));
  ASSIGN_OR_RETURN(const Text text, Str(workspace, input));
  ASSIGN_OR_RETURN(const Text from, Str(workspace, *bound[0]));
  ASSIGN_OR_RETURN(const Text to, Str(workspace, *bound[1]));
  ASSIGN_OR_RETURN(const Int count, bound.IntOr(2, -1));
  ASSIGN_OR_RETURN(Text replaced, Replace(workspace, text, from, to, count));
  return workspace.String(std::move(replaced));
}

Result JoinFilter(Workspace& workspace, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, BoundArguments::Bind("join", arguments, {"d", "attribute"}));
  ASSIGN_OR_RETURN(Items items, Iterate(workspace, input));
  if (bound[1] != nullptr && !bound[1]->is_none()) {
    Values picked;
    for (const Value& item : *items) {
      ASSIGN_OR_RETURN(picked.emplace_back(), AttributePath(workspace, item, *bound[1]));
    }
    items = std::make_shared<const Values>(std::move(picked));
  }
  Text separator;
  if (bound[0] != nullptr) {
    ASSIGN_OR_RETURN(separator, Str(workspace, *bound[0]));
  }
  ASSIGN_OR_RETURN(Text text, Join(workspace, separator, *items, false));
  return workspace.String(std::move(text));
}

Result StringFilter(Workspace& workspace, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(BoundArguments::Bind("string", arguments, {}).status());
  if (input.AsText() != nullptr) return input;
  ASSIGN_OR_RETURN(Text text, Str(workspace, input));
  return workspace.String(std::move(text));
}

Result EscapeFilter(Workspace& workspace, const Value& input, const Arguments&) {
  ASSIGN_OR_RETURN(const Text text, Str(workspace, input));
  RETURN_IF_ERROR(workspace.Expect(6 * text.size()));
  Text out;
  const std::string& bytes = text.bytes();
  size_t plain = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    const char c = bytes[i];
    const std::string_view escaped = c == '&'    ? "&amp;"
                                     : c == '<'  ? "&lt;"
                                     : c == '>'  ? "&gt;"
                                     : c == '\'' ? "&#39;"
                                     : c == '"'  ? "&#34;"
                                                 : "";
    if (escaped.empty()) continue;
    out.AppendPart(text, plain, i);
    out.Append(escaped, false);
    plain = i + 1;
  }
  out.AppendPart(text, plain, text.size());
  return workspace.String(std::move(out));
}

// The separators of tojson(): a list or tuple of two strings.
absl::Status ReadSeparators(const Value& value, JsonStyle& style) {
  const Sequence* const pair = value.AsSequence();
  if (pair == nullptr || pair->items.size() != 2 || pair->items[0].AsText() == nullptr ||
      pair->items[1].AsText() == nullptr) {
    return Error({"tojson(): 'separators' must be two strings"});
  }
  style.item_separator = pair->items[0].AsText()->bytes();
  style.key_separator = pair->items[1].AsText()->bytes();
  return absl::OkStatus();
}

Result ToJsonFilter(Workspace& workspace, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound,
                   BoundArguments::Bind("tojson", arguments,
                                        {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  style.ascii_only = bound.TruthOr(0, false);
  style.sort_keys = bound.TruthOr(3, false);
  if (bound[1] != nullptr && !bound[1]->is_none()) {
    style.item_separator.assign(1, ',');
    if (bound[1]->AsText() != nullptr) {
      style.indent = bound[1]->AsText()->bytes();
    } else {
      constexpr Int kIndentMax = 1000;
      ASSIGN_OR_RETURN(const Int width, bound.IntOr(1, 0));
      if (width > kIndentMax) return OverLimit({"tojson(): 'indent' is over 1000"});
      style.indent = std::string(static_cast<size_t>(std::max<Int>(width, 0)), ' ');
    }
  }
  if (bound[2] != nullptr && !bound[2]->is_none()) {
    RETURN_IF_ERROR(ReadSeparators(*bound[2], style));
  }
  ASSIGN_OR_RETURN(Text text, ToJson(workspace, input, style));
  return workspace.String(std::move(text));
}

// Puts spaces before each line but the first, unless `first`; empty lines stay, unless `blank`.
Result IndentFilter(Workspace& workspace, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound,
                   BoundArguments::Bind("indent", arguments, {"width", "first", "blank"}));
  ASSIGN_OR_RETURN(const Text text, Str(workspace, input));
  std::string indent;
  if (bound[0] != nullptr && bound[0]->AsText() != nullptr) {
    indent = bound[0]->AsText()->bytes();
  } else {
    constexpr Int kWidthMax = 1000;
    ASSIGN_OR_RETURN(const Int width, bound.IntOr(0, 4));
    if (width > kWidthMax) return OverLimit({"indent(): 'width' is over 1000"});
    indent = std::string(static_cast<size_t>(std::max<Int>(width, 0)), ' ');
  }
  const bool first = bound.TruthOr(1, false);
  const bool blank = bound.TruthOr(2, false);
  // With a line break more, the last line counts even if it is empty.
  Text whole = text;
  whole.Append("\n", false);
  ASSIGN_OR_RETURN(const Value lines, SplitLines(workspace, whole, false));
  Text out;
  if (first) out.Append(indent, false);
  const Values& items = lines.AsSequence()->items;
  for (size_t i = 0; i < items.size(); ++i) {
    const Text& line = *items[i].AsText();
    if (i > 0) out.Append("\n", false);
    if (i > 0 && (!line.empty() || blank)) out.Append(indent, false);
    out.Append(line);
    RETURN_IF_ERROR(workspace.CheckRoom(out.size() + indent.size()));
  }
  return workspace.String(std::move(out));
}

Result FormatFilter(Workspace& workspace, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Text text, Str(workspace, input));
  if (!arguments.named.empty()) {
    std::vector<Dict::Entry> entries;
    for (const auto& [name, value] : arguments.named) {
      entries.emplace_back(Value::OfText(Text(name, true)), value);
    }
    ASSIGN_OR_RETURN(const Value named, workspace.MakeDict(std::move(entries)));
    return FormatPercent(workspace, text, named);
  }
  ASSIGN_OR_RETURN(const Value values,
                   workspace.Items(Sequence::Kind::kTuple, arguments.positional));
  return FormatPercent(workspace, text, values);
}

// The number that `text` is as a whole, after Python's int() or float(); nothing otherwise.
std::optional<double> ParseFloat(const Text& text) {
  std::string digits(Strip(text, std::nullopt, {}).bytes());
  if (digits.empty() || digits.find_first_of("xXpP(") != std::string::npos) return std::nullopt;
  char* end = nullptr;
  const double number = std::strtod(digits.c_str(), &end);
  if (end != digits.c_str() + digits.size()) return std::nullopt;
  return number;
}

std::optional<Int> ParseInt(const Text& text) {
  const std::string digits = Strip(text, std::nullopt, {}).bytes();
  const size_t sign = !digits.empty() && (digits[0] == '-' || digits[0] == '+') ? 1 : 0;
  if (digits.size() == sign) return std::nullopt;
  Int number = 0;
  for (size_t i = sign; i < digits.size(); ++i) {
    if (digits[i] < '0' || digits[i] > '9') return std::nullopt;
    if (__builtin_mul_overflow(number, Int{10}, &number) ||
        __builtin_add_overflow(number, Int{digits[i] - '0'}, &number)) {
      return std::nullopt;
    }
  }
  return digits[0] == '-' ? -number : number;
}

absl::StatusOr<Value> Truncate(double number, const Value& fallback) {
  if (std::isnan(number)) return fallback;
  if (!(number > -1e37 && number < 1e37)) return Error({"the number is too large for an integer"});
  return Value(static_cast<Int>(number));
}

Result IntFilter(Workspace&, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, BoundArguments::Bind("int", arguments, {"default", "base"}));
  const Value fallback = bound[0] == nullptr ? Value(Int{0}) : *bound[0];
  ASSIGN_OR_RETURN(const Int base, bound.IntOr(1, 10));
  if (base != 10) return Unsupported({"int() with another base than 10"});
  if (input.is_undefined()) return input.UndefinedError();
  if (input.AsInt().has_value()) return Value(*input.AsInt());
  if (input.AsFloat() != nullptr) return Truncate(*input.AsFloat(), fallback);
  if (input.AsText() == nullptr) return fallback;
  if (const auto number = ParseInt(*input.AsText())) return Value(*number);
  if (const auto number = ParseFloat(*input.AsText())) return Truncate(*number, fallback);
  return fallback;
}

Result FloatFilter(Workspace&, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, BoundArguments::Bind("float", arguments, {"default"}));
  if (input.is_undefined()) return input.UndefinedError();
  if (input.AsText() == nullptr) {
    const absl::StatusOr<double> number = ToDouble(input);
    if (number.ok()) return Value(*number);
  } else if (const auto number = ParseFloat(*input.AsText())) {
    return Value(*number);
  }
  return bound[0] == nullptr ? Value(0.0) : *bound[0];
}

Result AbsFilter(Workspace& workspace, const Value& input, const Arguments&) {
  ASSIGN_OR_RETURN(const bool negative, Less(workspace, input, Value(Int{0})));
  if (negative) return Negate(input);
  return input.AsInt().has_value() ? Value(*input.AsInt()) : input;
}

Result RoundFilter(Workspace&, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound,
                   BoundArguments::Bind("round", arguments, {"precision", "method"}));
  ASSIGN_OR_RETURN(const Int precision, bound.IntOr(0, 0));
  ASSIGN_OR_RETURN(const Text method, bound.TextOr(1, "common"));
  constexpr Int kPrecisionMax = 300;
  if (precision < 0 || precision > kPrecisionMax) {
    return Unsupported({"round() to ", IntText(precision), " digits"});
  }
  ASSIGN_OR_RETURN(const double number, ToDouble(input));
  if (method.bytes() == "common") {
    if (input.AsInt().has_value()) return Value(*input.AsInt());
    std::string text(512, '\0');
    std::snprintf(text.data(), text.size(), "%.*f", static_cast<int>(precision), number);
    return Value(std::strtod(text.c_str(), nullptr));
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  if (method.bytes() == "ceil") return Value(std::ceil(number * scale) / scale);
  if (method.bytes() == "floor") return Value(std::floor(number * scale) / scale);
  return Error({"round(): the method must be common, ceil or floor"});
}

Result WordCountFilter(Workspace& workspace, const Value& input, const Arguments&) {
  ASSIGN_OR_RETURN(const Text text, Str(workspace, input));
  ASSIGN_OR_RETURN(const Value words, Split(workspace, text, nullptr, -1, false));
  return Value(static_cast<Int>(words.AsSequence()->items.size()));
}

Result CenterFilter(Workspace& workspace, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, BoundArguments::Bind("center", arguments, {"width"}));
  ASSIGN_OR_RETURN(const Text text, Str(workspace, input));
  ASSIGN_OR_RETURN(const Int width, bound.IntOr(0, 80));
  ASSIGN_OR_RETURN(Text padded, Pad(workspace, text, width, " ", 1));
  return workspace.String(std::move(padded));
}

// Text is never escaped by itself here, so that there is nothing to mark.
Result SafeFilter(Workspace& workspace, const Value& input, const Arguments& arguments) {
  return StringFilter(workspace, input, arguments);
}

}  // namespace

const absl::flat_hash_map<std::string, Filter>& TextFilters() {
  static const auto* const kFilters = new absl::flat_hash_map<std::string, Filter>{
      {"upper", MapFilter<Upper>},
      {"lower", MapFilter<Lower>},
      {"capitalize", MapFilter<Capitalize>},
      {"title", MapFilter<TitleFilter>},
      {"trim", TrimFilter},
      {"replace", ReplaceFilter},
      {"join", JoinFilter},
      {"string", StringFilter},
      {"safe", SafeFilter},
      {"escape", EscapeFilter},
      {"e", EscapeFilter},
      {"forceescape", EscapeFilter},
      {"tojson", ToJsonFilter},
      {"indent", IndentFilter},
      {"format", FormatFilter},
      {"int", IntFilter},
      {"float", FloatFilter},
      {"abs", AbsFilter},
      {"round", RoundFilter},
      {"wordcount", WordCountFilter},
      {"center", CenterFilter},
  };
  return *kFilters;
}

}  // namespace retroinfer::jinja
