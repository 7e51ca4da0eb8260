#include "text/tokenizer/space_marks_json.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "text/tokenizer/text_normalizer.h"
#include "text/tokenizer/tokenizer_part.h"

namespace retroinfer {
namespace {

// U+2581 and what follows up to the next one, or what is before the first.
constexpr char kFromMark[] = R"(\x{2581}[^\x{2581}]*+|[^\x{2581}]++)";

// A pattern that must be the text `literal`.
absl::Status ExpectLiteral(const common::JsonReader& pattern, std::string_view literal) {
  RETURN_IF_ERROR(pattern.AllowOnly({"String"}));
  ASSIGN_OR_RETURN(const common::JsonReader string, pattern.Required("String"));
  ASSIGN_OR_RETURN(const std::string_view text, string.AsString());
  if (text == literal) return absl::OkStatus();
  return string.Error(absl::StrCat("only \"", std::string(literal), "\" is supported"));
}

// The last step, of a sequence of 4.
absl::Status ReadStrip(const common::JsonReader& value, SpaceMarkSpec& marks) {
  RETURN_IF_ERROR(value.AllowOnly({"type", "content", "start", "stop"}));
  ASSIGN_OR_RETURN(const common::JsonReader content, value.Required("content"));
  ASSIGN_OR_RETURN(const std::string_view text, content.AsString());
  ASSIGN_OR_RETURN(const common::JsonReader start, value.Required("start"));
  ASSIGN_OR_RETURN(const int64_t at_begin, start.AsInt(0, INT32_MAX));
  ASSIGN_OR_RETURN(const common::JsonReader stop, value.Required("stop"));
  ASSIGN_OR_RETURN(const int64_t at_end, stop.AsInt(0, INT32_MAX));
  if (text != " " || at_begin > 1 || at_end != 0) {
    return value.Error("only one space at the beginning can be dropped");
  }
  marks.drops_front = at_begin == 1;
  return absl::OkStatus();
}

}  // namespace

// Of Prepend and Replace nothing is understood but what SentencePiece does with spaces.
absl::Status ReadSpaceNormalizer(const common::JsonReader& value, SpaceMarkSpec& marks) {
  ASSIGN_OR_RETURN(const std::string_view type, TypeOfPart(value));
  const bool prepends = type == "Prepend";
  RETURN_IF_ERROR(prepends ? value.AllowOnly({"type", "prepend"})
                           : value.AllowOnly({"type", "pattern", "content"}));
  ASSIGN_OR_RETURN(const common::JsonReader text, value.Required(prepends ? "prepend" : "content"));
  ASSIGN_OR_RETURN(const std::string_view mark, text.AsString());
  if (mark != kSpaceMark) return text.Error("only U+2581 is supported");
  if (prepends) {
    if (marks.normalizes_front) return value.Error("a second Prepend is not supported");
    marks.normalizes_front = true;
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const common::JsonReader pattern, value.Required("pattern"));
  RETURN_IF_ERROR(ExpectLiteral(pattern, " "));
  marks.normalizes_spaces = true;
  return absl::OkStatus();
}

absl::Status ReadMetaspace(const common::JsonReader& value, TokenizerSpec& spec) {
  RETURN_IF_ERROR(value.AllowOnly(
      {"type", "replacement", "add_prefix_space", "prepend_scheme", "split", "str_rep"}));
  if (!spec.splits.empty()) {
    return value.Error("a pre-tokenizer before Metaspace is not supported");
  }
  ASSIGN_OR_RETURN(const common::JsonReader replacement, value.Required("replacement"));
  ASSIGN_OR_RETURN(const std::string_view mark, replacement.AsString());
  if (mark != kSpaceMark) return replacement.Error("only U+2581 is supported");
  ASSIGN_OR_RETURN(const std::optional<common::JsonReader> scheme,
                   value.Optional("prepend_scheme"));
  std::string_view name = "always";
  if (scheme.has_value()) {
    ASSIGN_OR_RETURN(name, scheme->AsString());
  }
  ASSIGN_OR_RETURN(const bool may_prefix, value.BoolOr("add_prefix_space", true));
  if (!may_prefix && name != "never") {
    return value.Error("add_prefix_space contradicts prepend_scheme");
  }
  using Front = SpaceMarkSpec::Front;
  if (name == "always") {
    spec.marks.front = Front::kEach;
  } else if (name == "first") {
    spec.marks.front = Front::kFirst;
  } else if (name != "never") {
    return scheme->Error("needs to be always, first or never");
  }
  spec.marks.replaces_spaces = true;
  ASSIGN_OR_RETURN(const bool split, value.BoolOr("split", true));
  if (split) spec.splits.push_back({.pattern = kFromMark});
  return absl::OkStatus();
}

absl::Status ReadFallbackDecoder(const common::JsonReader& value, SpaceMarkSpec& marks) {
  ASSIGN_OR_RETURN(const std::string_view type, TypeOfPart(value));
  if (type != "Sequence") return UnknownType(value, type);
  RETURN_IF_ERROR(value.AllowOnly({"type", "decoders"}));
  ASSIGN_OR_RETURN(const common::JsonReader children, value.Required("decoders"));
  ASSIGN_OR_RETURN(const common::JsonElements array, children.AsArray());
  constexpr std::string_view kSteps[] = {"Replace", "ByteFallback", "Fuse", "Strip"};
  size_t count = 0;
  for (const common::JsonValue element : array) {
    const common::JsonReader step = children.Child(element, absl::StrCat("[", count, "]"));
    ASSIGN_OR_RETURN(const std::string_view name, TypeOfPart(step));
    if (count == std::size(kSteps) || name != kSteps[count]) return UnknownType(step, name);
    if (name == "Replace") {
      RETURN_IF_ERROR(step.AllowOnly({"type", "pattern", "content"}));
      ASSIGN_OR_RETURN(const common::JsonReader pattern, step.Required("pattern"));
      RETURN_IF_ERROR(ExpectLiteral(pattern, kSpaceMark));
      ASSIGN_OR_RETURN(const common::JsonReader content, step.Required("content"));
      ASSIGN_OR_RETURN(const std::string_view text, content.AsString());
      if (text != " ") return content.Error("only a space is supported");
    } else if (name == "Strip") {
      RETURN_IF_ERROR(ReadStrip(step, marks));
    } else {
      RETURN_IF_ERROR(step.AllowOnly({"type"}));
    }
    ++count;
  }
  if (count < 3) return value.Error("needs Replace, ByteFallback and Fuse");
  return absl::OkStatus();
}

}  // namespace retroinfer
