#include "text/jinja/text_functions.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/status/status_macros.h"
#include "text/jinja/characters.h"
#include "text/jinja/errors.h"
#include "text/jinja/printing.h"

namespace retroinfer::jinja {
namespace {

bool IsStripped(std::string_view character, char32_t code,
                const std::optional<std::string_view>& characters) {
  if (!characters.has_value()) return IsSpace(code);
  return characters->find(character) != std::string_view::npos;
}

// Calls `append(code, out)` for each character of `text`; `out` keeps the origin.
template <typename Append>
Text MapCharacters(const Text& text, Append append) {
  Text out;
  out.Reserve(text.size());
  const std::string_view bytes = text.bytes();
  size_t at = 0;
  for (const Text::Run& run : text.runs()) {
    std::string mapped;
    while (at < run.end) {
      const Character character = FirstCharacter(bytes.substr(at));
      append(character.code, mapped);
      at += character.length;
    }
    out.Append(mapped, run.of_template);
  }
  return out;
}

using Piece = std::pair<size_t, size_t>;  // begin and end, in bytes

std::vector<Piece> PiecesBetween(std::string_view bytes, std::string_view separator, Int count) {
  std::vector<Piece> pieces;
  size_t begin = 0;
  for (; count != 0; --count) {
    const size_t found = bytes.find(separator, begin);
    if (found == std::string_view::npos) break;
    pieces.emplace_back(begin, found);
    begin = found + separator.size();
  }
  pieces.emplace_back(begin, bytes.size());
  return pieces;
}

std::vector<Piece> PiecesBetweenFromRight(std::string_view bytes, std::string_view separator,
                                          Int count) {
  std::vector<Piece> pieces;
  size_t end = bytes.size();
  for (; count != 0; --count) {
    const size_t found = bytes.substr(0, end).rfind(separator);
    if (found == std::string_view::npos) break;
    pieces.emplace_back(found + separator.size(), end);
    end = found;
  }
  pieces.emplace_back(0, end);
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

size_t SkipSpace(std::string_view bytes, size_t at, bool space) {
  while (at < bytes.size()) {
    const Character character = FirstCharacter(bytes.substr(at));
    if (IsSpace(character.code) != space) break;
    at += character.length;
  }
  return at;
}

std::vector<Piece> Words(std::string_view bytes, Int count) {
  std::vector<Piece> pieces;
  size_t at = SkipSpace(bytes, 0, true);
  for (; at < bytes.size(); --count) {
    if (count == 0) {
      pieces.emplace_back(at, bytes.size());
      break;
    }
    const size_t end = SkipSpace(bytes, at, false);
    pieces.emplace_back(at, end);
    at = SkipSpace(bytes, end, true);
  }
  return pieces;
}

absl::StatusOr<Value> ListOfPieces(Workspace& workspace, const Text& text,
                                   const std::vector<Piece>& pieces) {
  Values items;
  items.reserve(pieces.size());
  for (const auto& [begin, end] : pieces) {
    ASSIGN_OR_RETURN(items.emplace_back(), workspace.String(text.Part(begin, end)));
  }
  return workspace.List(std::move(items));
}

bool IsLineBreak(char32_t code) {
  return (code >= 0x0A && code <= 0x0D) || (code >= 0x1C && code <= 0x1E) || code == 0x85 ||
         code == 0x2028 || code == 0x2029;
}

}  // namespace

Text Strip(const Text& text, const std::optional<std::string_view>& characters, Ends ends) {
  const std::string_view bytes = text.bytes();
  size_t begin = 0;
  size_t end = bytes.size();
  while (ends.front && begin < end) {
    const Character first = FirstCharacter(bytes.substr(begin, end - begin));
    if (!IsStripped(bytes.substr(begin, first.length), first.code, characters)) break;
    begin += first.length;
  }
  while (ends.back && begin < end) {
    const Character last = LastCharacter(bytes.substr(begin, end - begin));
    if (!IsStripped(bytes.substr(end - last.length, last.length), last.code, characters)) break;
    end -= last.length;
  }
  return text.Part(begin, end);
}

absl::StatusOr<Text> Replace(Workspace& workspace, const Text& text, const Text& from,
                             const Text& to, Int count) {
  RETURN_IF_ERROR(workspace.Expect(text.size()));
  const std::string_view bytes = text.bytes();
  Text out;
  size_t begin = 0;   // of what is not copied yet
  size_t search = 0;  // where the next occurrence may begin
  for (; count != 0; --count) {
    const size_t found = bytes.find(from.bytes(), search);
    if (found == std::string_view::npos) break;
    RETURN_IF_ERROR(workspace.Spend(1 + to.size() / 256));
    RETURN_IF_ERROR(workspace.CheckRoom(out.size() + to.size()));
    out.AppendPart(text, begin, found);
    out.Append(to);
    begin = found + from.size();
    search = begin;
    if (from.empty()) {  // before each character, and at the end
      if (found == bytes.size()) break;
      search = found + FirstCharacter(bytes.substr(found)).length;
    }
  }
  out.AppendPart(text, begin, text.size());
  return out;
}

absl::StatusOr<Value> Split(Workspace& workspace, const Text& text, const Text* separator,
                            Int count, bool from_right) {
  RETURN_IF_ERROR(workspace.Expect(text.size()));
  if (separator == nullptr) {
    if (from_right && count >= 0) {
      return Unsupported({"rsplit() at white space with a number of cuts"});
    }
    return ListOfPieces(workspace, text, Words(text.bytes(), count));
  }
  if (separator->empty()) return Error({"split(): the separator is empty"});
  return ListOfPieces(workspace, text,
                      from_right ? PiecesBetweenFromRight(text.bytes(), separator->bytes(), count)
                                 : PiecesBetween(text.bytes(), separator->bytes(), count));
}

absl::StatusOr<Value> SplitLines(Workspace& workspace, const Text& text, bool keep_ends) {
  RETURN_IF_ERROR(workspace.Expect(text.size()));
  const std::string_view bytes = text.bytes();
  std::vector<Piece> pieces;
  size_t begin = 0;
  for (size_t at = 0; at < bytes.size();) {
    const Character character = FirstCharacter(bytes.substr(at));
    size_t next = at + character.length;
    if (IsLineBreak(character.code)) {
      if (character.code == '\r' && next < bytes.size() && bytes[next] == '\n') ++next;
      pieces.emplace_back(begin, keep_ends ? next : at);
      begin = next;
    }
    at = next;
  }
  if (begin < bytes.size()) pieces.emplace_back(begin, bytes.size());
  return ListOfPieces(workspace, text, pieces);
}

absl::StatusOr<Text> Join(Workspace& workspace, const Text& separator, const Values& items,
                          bool strings_only) {
  Text out;
  for (size_t i = 0; i < items.size(); ++i) {
    if (strings_only && items[i].AsText() == nullptr) {
      return Error({"join(): item ", std::to_string(i), " is of type '", items[i].TypeName(),
                    "', not a string"});
    }
    if (i > 0) out.Append(separator);
    ASSIGN_OR_RETURN(const Text text, Str(workspace, items[i]));
    out.Append(text);
    RETURN_IF_ERROR(workspace.Spend(1 + (text.size() + separator.size()) / 256));
    RETURN_IF_ERROR(workspace.CheckRoom(out.size()));
  }
  return out;
}

Text Upper(const Text& text) { return MapCharacters(text, AppendUpper); }

Text Lower(const Text& text) { return MapCharacters(text, AppendLower); }

Text Capitalize(const Text& text) {
  return MapCharacters(text, [first = true](char32_t code, std::string& out) mutable {
    first ? AppendUpper(code, out) : AppendLower(code, out);
    first = false;
  });
}

Text Title(const Text& text) {
  return MapCharacters(text, [inside = false](char32_t code, std::string& out) mutable {
    inside ? AppendLower(code, out) : AppendUpper(code, out);
    inside = IsAlpha(code);
  });
}

Text TitleFilter(const Text& text) {
  return MapCharacters(text, [inside = false](char32_t code, std::string& out) mutable {
    inside ? AppendLower(code, out) : AppendUpper(code, out);
    inside = !IsSpace(code) &&
             (code >= 0x80 ||
              std::string_view("-({[<").find(static_cast<char>(code)) == std::string_view::npos);
  });
}

absl::StatusOr<Text> Pad(Workspace& workspace, const Text& text, Int width, std::string_view fill,
                         int back_share) {
  const auto missing = width - static_cast<Int>(CountCharacters(text.bytes()));
  if (missing <= 0) return text;
  if (missing > static_cast<Int>(workspace.limits().memory_bytes_max)) {
    return OverLimit({"a text is padded to ", IntText(width), " characters"});
  }
  const auto count = static_cast<size_t>(missing);
  RETURN_IF_ERROR(workspace.Expect(count * fill.size() + text.size()));
  const size_t odd = count & static_cast<size_t>(width) & 1;  // as str.center() has it
  const size_t back =
      back_share == 1 ? count - (count / 2 + odd) : count * static_cast<size_t>(back_share / 2);
  Text out;
  for (size_t i = 0; i < count - back; ++i) out.Append(fill, false);
  out.Append(text);
  for (size_t i = 0; i < back; ++i) out.Append(fill, false);
  return out;
}

}  // namespace retroinfer::jinja
