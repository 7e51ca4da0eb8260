#include "text/jinja/access.h"

#include <algorithm>
#include <string>
#include <utility>

#include "common/status/status_macros.h"
#include "text/jinja/characters.h"
#include "text/jinja/errors.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"

namespace retroinfer::jinja {
namespace {

constexpr size_t kBytesOfACharacter = 256;  // as a value of its own

bool HasIndexes(const Sequence& sequence) {
  return sequence.kind == Sequence::Kind::kList || sequence.kind == Sequence::Kind::kTuple ||
         sequence.kind == Sequence::Kind::kRange;
}

// "'dict object' has no attribute 'x'", as Jinja says it.
Value MissingAttribute(const Value& value, std::string_view name) {
  return Value::Missing(
      {"'", value.TypeName(), " object' has no attribute '", name.substr(0, 100), "'"});
}

// The item `index`, counted from the end where it is negative; nothing if there is none.
absl::StatusOr<std::optional<Value>> ItemAt(Workspace& workspace, const Value& value, Int index) {
  const Text* const text = value.AsText();
  if (text == nullptr) {
    const Values& items = value.AsSequence()->items;
    const auto size = static_cast<Int>(items.size());
    if (index < 0) index += size;
    if (index < 0 || index >= size) return std::nullopt;
    return items[static_cast<size_t>(index)];
  }
  RETURN_IF_ERROR(workspace.Expect(text->size()));
  const auto size = static_cast<Int>(CountCharacters(text->bytes()));
  if (index < 0) index += size;
  if (index < 0 || index >= size) return std::nullopt;
  const size_t begin = OffsetOfCharacter(text->bytes(), static_cast<size_t>(index));
  const size_t length = FirstCharacter(std::string_view(text->bytes()).substr(begin)).length;
  return workspace.String(text->Part(begin, begin + length));
}

// What `value[key]` finds without looking at attributes.
absl::StatusOr<std::optional<Value>> Subscript(Workspace& workspace, const Value& value,
                                               const Value& key) {
  if (const Dict* const dict = value.AsDict()) return FindKey(workspace, *dict, key);
  const bool has_indexes = value.AsText() != nullptr ||
                           (value.AsSequence() != nullptr && HasIndexes(*value.AsSequence()));
  if (has_indexes && key.AsInt().has_value()) return ItemAt(workspace, value, *key.AsInt());
  return std::nullopt;
}

absl::StatusOr<std::optional<Value>> Attribute(Workspace& workspace, const Value& value,
                                               std::string_view name) {
  if (Object* const object = value.AsObject()) return object->Attribute(workspace, name);
  return FindMethod(value, name);
}

// A part of a slice, brought into what Python's slice.indices() allows.
absl::StatusOr<Int> SlicePart(const Value& part, Int fallback, Int size, Int lowest, Int highest) {
  if (part.is_none()) return fallback;
  const std::optional<Int> number = part.AsInt();
  if (!number.has_value()) {
    if (part.is_undefined()) return part.UndefinedError();
    return Error({"slice indices must be integers or none, not '", part.TypeName(), "'"});
  }
  Int index = std::clamp<Int>(*number, -(Int{1} << 64), Int{1} << 64);
  if (index < 0) index += size;
  return std::clamp(index, lowest, highest);
}

struct SliceRange {
  Int start;
  Int stop;
  Int step;
};

absl::StatusOr<SliceRange> ResolveSlice(Int size, const Value& start, const Value& stop,
                                        const Value& step) {
  SliceRange range{0, 0, 1};
  if (!step.is_none()) {
    const std::optional<Int> number = step.AsInt();
    if (!number.has_value() || *number == 0) {
      return Error({"a slice's step must be an integer other than 0"});
    }
    range.step = std::clamp<Int>(*number, -(Int{1} << 64), Int{1} << 64);
  }
  const bool forward = range.step > 0;
  const Int lowest = forward ? 0 : -1;
  const Int highest = forward ? size : size - 1;
  ASSIGN_OR_RETURN(range.start,
                   SlicePart(start, forward ? lowest : highest, size, lowest, highest));
  ASSIGN_OR_RETURN(range.stop, SlicePart(stop, forward ? highest : lowest, size, lowest, highest));
  return range;
}

absl::StatusOr<Value> SliceText(Workspace& workspace, const Text& text, const SliceRange& range) {
  if (range.step == 1) {
    const size_t begin = OffsetOfCharacter(text.bytes(), static_cast<size_t>(range.start));
    const size_t end = OffsetOfCharacter(text.bytes(), static_cast<size_t>(range.stop));
    return workspace.String(begin < end ? text.Part(begin, end) : Text());
  }
  RETURN_IF_ERROR(workspace.Expect(text.size() * sizeof(size_t)));
  RETURN_IF_ERROR(workspace.Spend(text.size() / 16));
  std::vector<size_t> offsets;  // of each character, and the end
  for (size_t at = 0; at < text.size();
       at += FirstCharacter(std::string_view(text.bytes()).substr(at)).length) {
    offsets.push_back(at);
  }
  offsets.push_back(text.size());
  Text result;
  for (Int i = range.start; range.step > 0 ? i < range.stop : i > range.stop; i += range.step) {
    const auto index = static_cast<size_t>(i);
    result.AppendPart(text, offsets[index], offsets[index + 1]);
  }
  return workspace.String(std::move(result));
}

}  // namespace

bool IsIterable(const Value& value) {
  return value.is_undefined() || value.AsText() != nullptr || value.AsSequence() != nullptr ||
         value.AsDict() != nullptr;
}

absl::StatusOr<Items> Iterate(Workspace& workspace, const Value& value) {
  if (value.is_undefined()) return std::make_shared<const Values>();
  if (const Sequence* const sequence = value.AsSequence()) {
    if (sequence->kind == Sequence::Kind::kGenerator) {
      if (sequence->consumed) return std::make_shared<const Values>();
      sequence->consumed = true;
      RETURN_IF_ERROR(sequence->failure);
    }
    return Items(value.SharedSequence(), &sequence->items);
  }
  Values items;
  if (const Dict* const dict = value.AsDict()) {
    RETURN_IF_ERROR(workspace.Expect(dict->entries.size() * sizeof(Value)));
    for (const Dict::Entry& entry : dict->entries) items.push_back(entry.first);
  } else if (const Text* const text = value.AsText()) {
    RETURN_IF_ERROR(workspace.Expect(text->size() * kBytesOfACharacter));
    for (size_t at = 0; at < text->size();) {
      const size_t length = FirstCharacter(std::string_view(text->bytes()).substr(at)).length;
      ASSIGN_OR_RETURN(items.emplace_back(), workspace.String(text->Part(at, at + length)));
      at += length;
    }
  } else {
    return Error({"'", value.TypeName(), "' object is not iterable"});
  }
  return std::make_shared<const Values>(std::move(items));
}

absl::StatusOr<Int> Length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.AsText() != nullptr) {
    return static_cast<Int>(CountCharacters(value.AsText()->bytes()));
  }
  if (value.AsDict() != nullptr) return static_cast<Int>(value.AsDict()->entries.size());
  const Sequence* const sequence = value.AsSequence();
  if (sequence != nullptr && sequence->kind != Sequence::Kind::kGenerator) {
    return static_cast<Int>(sequence->items.size());
  }
  return Error({"object of type '", value.TypeName(), "' has no length"});
}

absl::StatusOr<std::optional<Value>> FindKey(Workspace& workspace, const Dict& dict,
                                             const Value& key) {
  if (const Text* const text = key.AsText()) {
    const Value* const found = dict.Find(text->bytes());
    return found == nullptr ? std::nullopt : std::optional<Value>(*found);
  }
  if (dict.strings.size() == dict.entries.size()) return std::nullopt;
  for (const Dict::Entry& entry : dict.entries) {
    if (entry.first.AsText() != nullptr) continue;
    ASSIGN_OR_RETURN(const bool equal, Equal(workspace, entry.first, key));
    if (equal) return entry.second;
  }
  return std::nullopt;
}

absl::StatusOr<Value> GetItem(Workspace& workspace, const Value& value, const Value& key) {
  if (value.is_undefined()) return value.UndefinedError();
  ASSIGN_OR_RETURN(std::optional<Value> found, Subscript(workspace, value, key));
  if (found.has_value()) return *std::move(found);
  if (const Text* const name = key.AsText()) {
    ASSIGN_OR_RETURN(found, Attribute(workspace, value, name->bytes()));
    if (found.has_value()) return *std::move(found);
    return MissingAttribute(value, name->bytes());
  }
  return Value::Missing({"'", value.TypeName(), " object' has no such item"});
}

absl::StatusOr<Value> GetAttribute(Workspace& workspace, const Value& value,
                                   std::string_view name) {
  if (value.is_undefined()) return value.UndefinedError();
  ASSIGN_OR_RETURN(std::optional<Value> found, Attribute(workspace, value, name));
  if (found.has_value()) return *std::move(found);
  if (const Dict* const dict = value.AsDict()) {
    if (const Value* const entry = dict->Find(name)) return *entry;
  }
  return MissingAttribute(value, name);
}

absl::StatusOr<Value> Slice(Workspace& workspace, const Value& value, const Value& start,
                            const Value& stop, const Value& step) {
  if (value.is_undefined()) return value.UndefinedError();
  const Text* const text = value.AsText();
  const Sequence* const sequence = value.AsSequence();
  if (text == nullptr && (sequence == nullptr || !HasIndexes(*sequence))) {
    return Error({"a '", value.TypeName(), "' cannot be sliced"});
  }
  if (text != nullptr) RETURN_IF_ERROR(workspace.Expect(text->size()));
  ASSIGN_OR_RETURN(const Int size, Length(value));
  ASSIGN_OR_RETURN(const SliceRange range, ResolveSlice(size, start, stop, step));
  if (text != nullptr) return SliceText(workspace, *text, range);
  Values items;
  for (Int i = range.start; range.step > 0 ? i < range.stop : i > range.stop; i += range.step) {
    items.push_back(sequence->items[static_cast<size_t>(i)]);
  }
  return workspace.Items(sequence->kind, std::move(items));
}

}  // namespace retroinfer::jinja
