#include "text/jinja/string_methods.h"

#include <algorithm>
#include <array>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "common/status/status_macros.h"
#include "text/jinja/access.h"
#include "text/jinja/call.h"
#include "text/jinja/characters.h"
#include "text/jinja/errors.h"
#include "text/jinja/format.h"
#include "text/jinja/text_functions.h"

namespace retroinfer::jinja {
namespace {

using Result = absl::StatusOr<Value>;

template <bool kFront, bool kBack>
Result StripMethod(Workspace& workspace, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, BoundArguments::Bind("strip", arguments, {"chars"}));
  RETURN_IF_ERROR(workspace.Expect(self.AsText()->size()));
  ASSIGN_OR_RETURN(const Text characters, bound.TextOr(0, ""));
  std::optional<std::string_view> stripped;
  if (bound[0] != nullptr && !bound[0]->is_none()) stripped = characters.bytes();
  return workspace.String(Strip(*self.AsText(), stripped, {.front = kFront, .back = kBack}));
}

template <bool kFromRight>
Result SplitMethod(Workspace& workspace, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, BoundArguments::Bind("split", arguments, {"sep", "maxsplit"}));
  ASSIGN_OR_RETURN(const Text separator, bound.TextOr(0, ""));
  ASSIGN_OR_RETURN(const Int count, bound.IntOr(1, -1));
  const bool at_space = bound[0] == nullptr || bound[0]->is_none();
  return Split(workspace, *self.AsText(), at_space ? nullptr : &separator, count, kFromRight);
}

Result SplitLinesMethod(Workspace& workspace, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, BoundArguments::Bind("splitlines", arguments, {"keepends"}));
  return SplitLines(workspace, *self.AsText(), bound.TruthOr(0, false));
}

// Whether the part [start, stop) of the text begins or ends with one of the strings given.
template <bool kAtEnd>
Result AffixMethod(Workspace& workspace, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound,
                   BoundArguments::Bind(kAtEnd ? "endswith" : "startswith", arguments,
                                        {"prefix", "start", "end"}, 1));
  std::string_view text = self.AsText()->bytes();
  Value part = self;
  if (bound[1] != nullptr) {
    ASSIGN_OR_RETURN(part, Slice(workspace, self, *bound[1],
                                 bound[2] == nullptr ? Value(None()) : *bound[2], None()));
    text = part.AsText()->bytes();
  }
  Values single = {*bound[0]};
  const Sequence* const several = bound[0]->AsSequence();
  if (several != nullptr && several->kind != Sequence::Kind::kTuple) {
    return Error({"startswith() takes a string or a tuple of strings"});
  }
  for (const Value& item : several != nullptr ? several->items : single) {
    if (item.AsText() == nullptr) {
      if (item.is_undefined()) return item.UndefinedError();
      return Error(
          {kAtEnd ? "endswith" : "startswith", "() takes a string, not '", item.TypeName(), "'"});
    }
    const std::string& affix = item.AsText()->bytes();
    if (kAtEnd ? text.ends_with(affix) : text.starts_with(affix)) return Value(true);
  }
  return Value(false);
}

Result ReplaceMethod(Workspace& workspace, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound,
                   BoundArguments::Bind("replace", arguments, {"old", "new", "count"}, 2));
  ASSIGN_OR_RETURN(const Text from, bound.TextOr(0, ""));
  ASSIGN_OR_RETURN(const Text to, bound.TextOr(1, ""));
  ASSIGN_OR_RETURN(const Int count, bound.IntOr(2, -1));
  if (bound[0]->is_none() || bound[1]->is_none()) return Error({"replace() takes strings"});
  ASSIGN_OR_RETURN(Text text, Replace(workspace, *self.AsText(), from, to, count));
  return workspace.String(std::move(text));
}

template <Text (*kMap)(const Text&)>
Result MapMethod(Workspace& workspace, const Value& self, const Arguments& arguments) {
  RETURN_IF_ERROR(BoundArguments::Bind("a method of str", arguments, {}).status());
  RETURN_IF_ERROR(workspace.Expect(2 * self.AsText()->size()));
  RETURN_IF_ERROR(workspace.Spend(self.AsText()->size() / 16));
  return workspace.String(kMap(*self.AsText()));
}

// Where the text is found, in characters; -1: nowhere.
template <bool kFromRight>
absl::StatusOr<Int> Find(Workspace& workspace, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound,
                   BoundArguments::Bind("find", arguments, {"sub", "start", "end"}, 1));
  ASSIGN_OR_RETURN(const Text sub, bound.TextOr(0, ""));
  if (bound[0]->is_none()) return Error({"find() takes a string"});
  std::string_view bytes = self.AsText()->bytes();
  RETURN_IF_ERROR(workspace.Expect(bytes.size()));
  const auto size = static_cast<Int>(CountCharacters(bytes));
  ASSIGN_OR_RETURN(Int start, bound.IntOr(1, 0));
  ASSIGN_OR_RETURN(Int end, bound.IntOr(2, size));
  if (start < 0) start = std::max<Int>(start + size, 0);
  if (end < 0) end += size;
  end = std::min(end, size);
  if (start > end) return -1;
  const size_t begin = OffsetOfCharacter(bytes, static_cast<size_t>(start));
  bytes = bytes.substr(begin, OffsetOfCharacter(bytes, static_cast<size_t>(end)) - begin);
  const size_t found = kFromRight ? bytes.rfind(sub.bytes()) : bytes.find(sub.bytes());
  if (found == std::string_view::npos) return -1;
  return start + static_cast<Int>(CountCharacters(bytes.substr(0, found)));
}

template <bool kFromRight>
Result FindMethodOfStr(Workspace& workspace, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Int found, Find<kFromRight>(workspace, self, arguments));
  return Value(found);
}

template <bool kFromRight>
Result IndexMethod(Workspace& workspace, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const Int found, Find<kFromRight>(workspace, self, arguments));
  if (found < 0) return Error({"index(): substring not found"});
  return Value(found);
}

Result CountMethod(Workspace& workspace, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, BoundArguments::Bind("count", arguments, {"sub"}, 1));
  ASSIGN_OR_RETURN(const Text sub, bound.TextOr(0, ""));
  const std::string& bytes = self.AsText()->bytes();
  RETURN_IF_ERROR(workspace.Expect(bytes.size()));
  if (sub.empty()) return Value(static_cast<Int>(CountCharacters(bytes)) + 1);
  Int count = 0;
  for (size_t at = bytes.find(sub.bytes()); at != std::string::npos;
       at = bytes.find(sub.bytes(), at + sub.size())) {
    ++count;
  }
  return Value(count);
}

Result JoinMethod(Workspace& workspace, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, BoundArguments::Bind("join", arguments, {"iterable"}, 1));
  ASSIGN_OR_RETURN(const Items items, Iterate(workspace, *bound[0]));
  ASSIGN_OR_RETURN(Text text, Join(workspace, *self.AsText(), *items, true));
  return workspace.String(std::move(text));
}

template <bool (*kPredicate)(char32_t)>
Result AllMethod(Workspace& workspace, const Value& self, const Arguments& arguments) {
  RETURN_IF_ERROR(BoundArguments::Bind("a test of str", arguments, {}).status());
  std::string_view bytes = self.AsText()->bytes();
  RETURN_IF_ERROR(workspace.Spend(bytes.size() / 16));
  if (bytes.empty()) return Value(false);
  while (!bytes.empty()) {
    const Character character = FirstCharacter(bytes);
    if (!kPredicate(character.code)) return Value(false);
    bytes.remove_prefix(character.length);
  }
  return Value(true);
}

bool IsAlnum(char32_t code) { return IsAlpha(code) || IsDecimal(code); }

// Whether there are letters of one case and none of the other.
template <bool (*kWanted)(char32_t), bool (*kOther)(char32_t)>
Result CaseMethod(Workspace& workspace, const Value& self, const Arguments& arguments) {
  RETURN_IF_ERROR(BoundArguments::Bind("a test of str", arguments, {}).status());
  std::string_view bytes = self.AsText()->bytes();
  RETURN_IF_ERROR(workspace.Spend(bytes.size() / 16));
  bool found = false;
  while (!bytes.empty()) {
    const Character character = FirstCharacter(bytes);
    if (kOther(character.code)) return Value(false);
    found |= kWanted(character.code);
    bytes.remove_prefix(character.length);
  }
  return Value(found);
}

template <int kBackShare>
Result PadMethod(Workspace& workspace, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound,
                   BoundArguments::Bind("just", arguments, {"width", "fillchar"}, 1));
  ASSIGN_OR_RETURN(const Int width, bound.IntOr(0, 0));
  ASSIGN_OR_RETURN(const Text fill, bound.TextOr(1, " "));
  if (CountCharacters(fill.bytes()) != 1) return Error({"the fill must be one character"});
  ASSIGN_OR_RETURN(Text text, Pad(workspace, *self.AsText(), width, fill.bytes(), kBackShare));
  return workspace.String(std::move(text));
}

// The text before the separator, the separator, and what follows it.
template <bool kFromRight>
Result PartitionMethod(Workspace& workspace, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, BoundArguments::Bind("partition", arguments, {"sep"}, 1));
  ASSIGN_OR_RETURN(const Text separator, bound.TextOr(0, ""));
  if (separator.empty()) return Error({"partition(): the separator is empty"});
  const Text& text = *self.AsText();
  const size_t found =
      kFromRight ? text.bytes().rfind(separator.bytes()) : text.bytes().find(separator.bytes());
  size_t begin = found;
  size_t end = found + separator.size();
  if (found == std::string::npos) begin = end = kFromRight ? 0 : text.size();
  Values parts(3);
  ASSIGN_OR_RETURN(parts[0], workspace.String(text.Part(0, begin)));
  ASSIGN_OR_RETURN(parts[1], workspace.String(text.Part(begin, end)));
  ASSIGN_OR_RETURN(parts[2], workspace.String(text.Part(end, text.size())));
  return workspace.Items(Sequence::Kind::kTuple, std::move(parts));
}

template <bool kAtEnd>
Result RemoveMethod(Workspace& workspace, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, BoundArguments::Bind("removeprefix", arguments, {"affix"}, 1));
  ASSIGN_OR_RETURN(const Text affix, bound.TextOr(0, ""));
  const Text& text = *self.AsText();
  const size_t left = text.size() - std::min(text.size(), affix.size());
  if (kAtEnd && text.bytes().ends_with(affix.bytes())) return workspace.String(text.Part(0, left));
  if (!kAtEnd && text.bytes().starts_with(affix.bytes())) {
    return workspace.String(text.Part(affix.size(), text.size()));
  }
  return self;
}

Result FormatMethod(Workspace& workspace, const Value& self, const Arguments& arguments) {
  return FormatBraces(workspace, *self.AsText(), arguments);
}

const absl::flat_hash_map<std::string, Method>& Methods() {
  static const auto* const kMethods = new absl::flat_hash_map<std::string, Method>{
      {"strip", StripMethod<true, true>},
      {"lstrip", StripMethod<true, false>},
      {"rstrip", StripMethod<false, true>},
      {"split", SplitMethod<false>},
      {"rsplit", SplitMethod<true>},
      {"splitlines", SplitLinesMethod},
      {"startswith", AffixMethod<false>},
      {"endswith", AffixMethod<true>},
      {"replace", ReplaceMethod},
      {"upper", MapMethod<Upper>},
      {"lower", MapMethod<Lower>},
      {"capitalize", MapMethod<Capitalize>},
      {"title", MapMethod<Title>},
      {"find", FindMethodOfStr<false>},
      {"rfind", FindMethodOfStr<true>},
      {"index", IndexMethod<false>},
      {"rindex", IndexMethod<true>},
      {"count", CountMethod},
      {"join", JoinMethod},
      {"isdigit", AllMethod<IsDecimal>},
      {"isdecimal", AllMethod<IsDecimal>},
      {"isnumeric", AllMethod<IsDecimal>},
      {"isalpha", AllMethod<IsAlpha>},
      {"isalnum", AllMethod<IsAlnum>},
      {"isspace", AllMethod<IsSpace>},
      {"isupper", CaseMethod<IsUpper, IsLower>},
      {"islower", CaseMethod<IsLower, IsUpper>},
      {"ljust", PadMethod<2>},
      {"center", PadMethod<1>},
      {"rjust", PadMethod<0>},
      {"partition", PartitionMethod<false>},
      {"rpartition", PartitionMethod<true>},
      {"removeprefix", RemoveMethod<false>},
      {"removesuffix", RemoveMethod<true>},
      {"format", FormatMethod},
  };
  return *kMethods;
}

constexpr std::array<std::string_view, 10> kOthers = {
    "casefold",     "encode",  "expandtabs", "format_map", "isascii",
    "isidentifier", "istitle", "swapcase",   "translate",  "zfill"};

}  // namespace

Method FindStringMethod(std::string_view name) {
  const auto found = Methods().find(absl::string_view(name.data(), name.size()));
  return found == Methods().end() ? nullptr : found->second;
}

bool IsOtherStringMethod(std::string_view name) {
  return std::find(kOthers.begin(), kOthers.end(), name) != kOthers.end();
}

}  // namespace retroinfer::jinja
