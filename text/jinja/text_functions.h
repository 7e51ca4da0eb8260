// What the methods of Python's str and Jinja's filters share.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "absl/status/statusor.h"
#include "text/jinja/workspace.h"

namespace retroinfer::jinja {

// Which ends are stripped.
struct Ends {
  bool front = true;
  bool back = true;
};

// Drops characters of `characters`, or white space where it is none.
Text Strip(const Text& text, const std::optional<std::string_view>& characters, Ends ends);

// str.replace(): at most `count` occurrences; all if it is negative.
absl::StatusOr<Text> Replace(Workspace& workspace, const Text& text, const Text& from,
                             const Text& to, Int count);

// str.split() and str.rsplit(): `separator` nullptr cuts at white space; `count` cuts at most, all
// if it is negative.
absl::StatusOr<Value> Split(Workspace& workspace, const Text& text, const Text* separator,
                            Int count, bool from_right);

absl::StatusOr<Value> SplitLines(Workspace& workspace, const Text& text, bool keep_ends);

absl::StatusOr<Text> Join(Workspace& workspace, const Text& separator, const Values& items,
                          bool strings_only);

Text Upper(const Text& text);
Text Lower(const Text& text);
// The first character in upper case, the others in lower.
Text Capitalize(const Text& text);
// str.title(): capitals after each character that is not a letter.
Text Title(const Text& text);
// Jinja's filter `title`: capitals at the beginning and after white space and -({[<.
Text TitleFilter(const Text& text);

// Pads to `width` characters; `back_share` of 2 halves of the padding come behind the text.
absl::StatusOr<Text> Pad(Workspace& workspace, const Text& text, Int width, std::string_view fill,
                         int back_share);

}  // namespace retroinfer::jinja
