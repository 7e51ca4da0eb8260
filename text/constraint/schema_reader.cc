#include "text/constraint/schema_reader.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "text/constraint/invalid_constraint.h"
#include "text/constraint/json_pointer.h"
#include "text/constraint/string_format.h"

namespace retroinfer::constraint {
namespace {

using common::JsonValue;

// Keywords that say nothing about which values are accepted.
bool IsAnnotation(std::string_view key) {
  static const auto* const kAnnotations =
      new absl::flat_hash_set<std::string_view>{"title",
                                                "description",
                                                "default",
                                                "examples",
                                                "example",
                                                "deprecated",
                                                "readOnly",
                                                "writeOnly",
                                                "$schema",
                                                "$id",
                                                "id",
                                                "$comment",
                                                "$vocabulary",
                                                "discriminator",
                                                "externalDocs",
                                                "xml",
                                                "$defs",
                                                "definitions",
                                                "contentEncoding",
                                                "contentMediaType",
                                                "contentSchema",
                                                "nullable",
                                                "markdownDescription",
                                                "enumNames",
                                                "enumDescriptions",
                                                "$anchor"};
  return kAnnotations->contains(key) || key.substr(0, 2) == "x-";
}

// What minContains says nothing without, and so on.
bool IsRefused(std::string_view key) {
  static const auto* const kRefused =
      new absl::flat_hash_set<std::string_view>{"not",
                                                "if",
                                                "then",
                                                "else",
                                                "contains",
                                                "minContains",
                                                "maxContains",
                                                "dependencies",
                                                "dependentRequired",
                                                "dependentSchemas",
                                                "unevaluatedItems",
                                                "unevaluatedProperties",
                                                "$dynamicRef",
                                                "$dynamicAnchor",
                                                "$recursiveRef",
                                                "$recursiveAnchor"};
  return kRefused->contains(key);
}

absl::Status WrongValue(const SchemaRef& at, std::string_view wanted) {
  return InvalidConstraint(
      at.pointer, absl::StrCat("needs ", std::string(wanted), ", has ", at.schema.TypeName()));
}

absl::StatusOr<size_t> ReadCount(const SchemaRef& at) {
  constexpr size_t kCountMax = 1'000'000'000;
  // 3.0 is an integer for the standard.
  const std::optional<double> number = at.schema.Number();
  if (!number.has_value() || *number < 0 || *number > kCountMax ||
      *number != static_cast<double>(static_cast<size_t>(*number))) {
    return WrongValue(at, "an integer from 0 to 1000000000");
  }
  return static_cast<size_t>(*number);
}

absl::StatusOr<Decimal> ReadNumber(const SchemaRef& at) {
  if (!at.schema.IsNumber()) return WrongValue(at, "a number");
  const std::optional<Decimal> number = Decimal::Parse(at.schema.Text());
  if (!number.has_value()) {
    return InvalidConstraint(at.pointer,
                             "needs a number of at most 40 digits before and behind the point");
  }
  return *number;
}

absl::Status CheckSchema(const SchemaRef& at) {
  if (at.schema.IsBool() || at.schema.IsObject()) return absl::OkStatus();
  return WrongValue(at, "a schema: an object, true or false");
}

absl::StatusOr<SchemaSet> ReadSchemas(const SchemaRef& at, bool may_be_empty) {
  if (!at.schema.IsArray() || (at.schema.Size() == 0 && !may_be_empty)) {
    return WrongValue(at, may_be_empty ? "a list of schemas" : "a list of at least one schema");
  }
  SchemaSet schemas;
  size_t index = 0;
  for (const JsonValue element : at.schema.Elements()) {
    schemas.push_back({element, PointerTo(at.pointer, absl::StrCat(index++))});
    RETURN_IF_ERROR(CheckSchema(schemas.back()));
  }
  return schemas;
}

}  // namespace

absl::Status SchemaReader::Charge(size_t visits, std::string_view pointer) {
  visits_ += visits;
  if (visits_ <= limits_.schema_visits_max) return absl::OkStatus();
  return InvalidConstraint(
      pointer, absl::StrCat("the schema needs more than ", limits_.schema_visits_max,
                            " readings of its parts; use fewer combinations of allOf and anyOf"));
}

absl::StatusOr<SchemaNode> SchemaReader::Read(const SchemaSet& set) {
  SchemaNode node;
  if (!set.empty()) node.pointer = set.front().pointer;
  for (const SchemaRef& ref : set) RETURN_IF_ERROR(Add(ref, node));
  return node;
}

absl::Status SchemaReader::Add(const SchemaRef& ref, SchemaNode& node) {
  RETURN_IF_ERROR(Charge(1, ref.pointer));
  RETURN_IF_ERROR(CheckSchema(ref));
  if (const std::optional<bool> truth = ref.schema.Bool()) {
    if (!*truth) node.types = 0;
    return absl::OkStatus();
  }
  if (std::find(open_.begin(), open_.end(), ref.pointer) != open_.end()) {
    return InvalidConstraint(ref.pointer,
                             "refers to itself, without a property or an item between");
  }
  if (open_.size() >= 4 * limits_.nesting_max) {
    return InvalidConstraint(ref.pointer,
                             absl::StrCat("is behind more than ", 4 * limits_.nesting_max,
                                          " references and allOf in each other"));
  }
  open_.push_back(ref.pointer);
  const absl::Status status = AddObject(ref, node);
  open_.pop_back();
  return status;
}

absl::Status SchemaReader::AddObject(const SchemaRef& ref, SchemaNode& node) {
  Local local;
  for (const common::JsonMember member : ref.schema.Members()) {
    RETURN_IF_ERROR(AddMember(ref, member, local, node));
  }
  // In drafts before 2020-12, `items` may be a list, and `additionalItems` is what is behind.
  if (const auto items = ref.schema.Find("items"); items.has_value() && items->IsArray()) {
    const SchemaRef at = {*items, PointerTo(ref.pointer, "items")};
    ASSIGN_OR_RETURN(const SchemaSet prefix, ReadSchemas(at, true));
    for (const SchemaRef& item : prefix) local.array.prefix.push_back({item});
    if (const auto rest = ref.schema.Find("additionalItems"); rest.has_value()) {
      local.array.items = {{*rest, PointerTo(ref.pointer, "additionalItems")}};
      RETURN_IF_ERROR(CheckSchema(local.array.items[0]));
    }
  }
  Conjoin(local.array, node.array);
  Conjoin(local.object, node.object);
  return absl::OkStatus();
}

absl::Status SchemaReader::AddMember(const SchemaRef& ref, const common::JsonMember& member,
                                     Local& local, SchemaNode& node) {
  const SchemaRef at = {member.value, PointerTo(ref.pointer, member.key)};
  if (IsRefused(member.key)) {
    return InvalidConstraint(
        at.pointer, absl::StrCat("the keyword \"", std::string(member.key), "\" is not supported"));
  }
  if (member.key == "type") {
    // OpenAPI 3.0 writes a null beside a type like this.
    const std::optional<JsonValue> nullable = ref.schema.Find("nullable");
    return AddTypes(at, nullable.has_value() && nullable->Bool() == true, node);
  }
  bool known = IsAnnotation(member.key);
  if (!known) RETURN_IF_ERROR(AddGeneral(at, member.key, node, known));
  if (!known) RETURN_IF_ERROR(AddNumber(at, member.key, node, known));
  if (!known) RETURN_IF_ERROR(AddString(at, member.key, node, known));
  if (!known) RETURN_IF_ERROR(AddArray(at, member.key, local, known));
  // What JSON Schema does not know is an annotation, by its own words: packages leave some there.
  if (!known) RETURN_IF_ERROR(AddObjectMember(at, member.key, local, known));
  return absl::OkStatus();
}

absl::Status SchemaReader::AddTypes(const SchemaRef& at, bool is_nullable, SchemaNode& node) {
  static constexpr std::pair<std::string_view, TypeBits> kTypes[] = {
      {"null", kNullType},      {"boolean", kBooleanType}, {"integer", kIntegerType},
      {"number", kNumberTypes}, {"string", kStringType},   {"array", kArrayType},
      {"object", kObjectType}};
  std::vector<JsonValue> names;
  if (at.schema.IsArray()) {
    for (const JsonValue name : at.schema.Elements()) names.push_back(name);
  } else {
    names.push_back(at.schema);
  }
  TypeBits types = is_nullable ? kNullType : 0;
  for (const JsonValue& name : names) {
    const auto* const type =
        std::find_if(std::begin(kTypes), std::end(kTypes),
                     [&name](const auto& entry) { return name.String() == entry.first; });
    if (type == std::end(kTypes)) {
      return WrongValue(at, "null, boolean, integer, number, string, array, object, or a list");
    }
    types |= type->second;
  }
  node.types &= types;
  return absl::OkStatus();
}

absl::Status SchemaReader::AddGeneral(const SchemaRef& at, std::string_view key, SchemaNode& node,
                                      bool& known) {
  known = true;
  if (key == "const") {
    Conjoin(std::vector<JsonValue>{at.schema}, node);
  } else if (key == "enum") {
    if (!at.schema.IsArray()) return WrongValue(at, "a list of values");
    std::vector<JsonValue> values;
    for (const JsonValue value : at.schema.Elements()) values.push_back(value);
    Conjoin(values, node);
  } else if (key == "$ref") {
    ASSIGN_OR_RETURN(const SchemaRef target, Resolve(at));
    return Add(target, node);
  } else if (key == "allOf") {
    ASSIGN_OR_RETURN(const SchemaSet schemas, ReadSchemas(at, false));
    for (const SchemaRef& schema : schemas) RETURN_IF_ERROR(Add(schema, node));
  } else if (key == "anyOf" || key == "oneOf") {
    ASSIGN_OR_RETURN(SchemaSet schemas, ReadSchemas(at, false));
    node.choices.push_back({std::move(schemas), key == "oneOf", at.pointer});
  } else {
    known = false;
  }
  return absl::OkStatus();
}

absl::Status SchemaReader::AddNumber(const SchemaRef& at, std::string_view key, SchemaNode& node,
                                     bool& known) {
  known = true;
  const bool is_min = key == "minimum" || key == "exclusiveMinimum";
  const bool is_max = key == "maximum" || key == "exclusiveMaximum";
  if (is_min || is_max) {
    if (at.schema.IsBool()) {
      return InvalidConstraint(at.pointer, "needs a number: true and false are of drafts before 6");
    }
    ASSIGN_OR_RETURN(Decimal value, ReadNumber(at));
    const NumberBound bound = {.value = std::move(value),
                               .is_exclusive = key.substr(0, 9) == "exclusive"};
    if (is_min) RaiseMin(bound, node.number);
    if (is_max) LowerMax(bound, node.number);
  } else if (key == "multipleOf") {
    ASSIGN_OR_RETURN(Decimal value, ReadNumber(at));
    if (value.is_negative || value.IsZero()) return WrongValue(at, "a number greater than 0");
    node.number.multiples_of.push_back(std::move(value));
  } else {
    known = false;
  }
  return absl::OkStatus();
}

absl::Status SchemaReader::AddString(const SchemaRef& at, std::string_view key, SchemaNode& node,
                                     bool& known) {
  known = true;
  StringDemands& string = node.string;
  if (key == "minLength") {
    ASSIGN_OR_RETURN(const size_t length, ReadCount(at));
    string.min_length = std::max(string.min_length, length);
  } else if (key == "maxLength") {
    ASSIGN_OR_RETURN(const size_t length, ReadCount(at));
    string.max_length = std::min(string.max_length.value_or(length), length);
  } else if (key == "pattern" || key == "format") {
    if (!at.schema.IsString()) return WrongValue(at, "a string");
    const std::string_view text = *at.schema.String();
    std::vector<std::string>& texts = key == "pattern" ? string.patterns : string.formats;
    const bool is_enforced = key == "pattern" || PatternOfFormat(text).has_value();
    if (is_enforced && std::find(texts.begin(), texts.end(), text) == texts.end()) {
      texts.emplace_back(text);
    }
  } else {
    known = false;
  }
  return absl::OkStatus();
}

absl::Status SchemaReader::AddArray(const SchemaRef& at, std::string_view key, Local& local,
                                    bool& known) {
  known = true;
  if (key == "items") {
    if (at.schema.IsArray()) return absl::OkStatus();  // AddObject() reads it
    RETURN_IF_ERROR(CheckSchema(at));
    local.array.items = {at};
  } else if (key == "prefixItems") {
    ASSIGN_OR_RETURN(const SchemaSet prefix, ReadSchemas(at, false));
    for (const SchemaRef& item : prefix) local.array.prefix.push_back({item});
  } else if (key == "minItems") {
    ASSIGN_OR_RETURN(local.array.min_items, ReadCount(at));
  } else if (key == "maxItems") {
    ASSIGN_OR_RETURN(local.array.max_items, ReadCount(at));
  } else if (key == "uniqueItems") {
    if (!at.schema.IsBool()) return WrongValue(at, "true or false");
    local.array.is_unique = *at.schema.Bool();
  } else {
    // Without a list as `items`, the standard ignores it.
    known = key == "additionalItems";
  }
  return absl::OkStatus();
}

absl::Status SchemaReader::AddObjectMember(const SchemaRef& at, std::string_view key, Local& local,
                                           bool& known) {
  known = true;
  ObjectDemands& object = local.object;
  if (key == "properties" || key == "patternProperties") {
    if (!at.schema.IsObject()) return WrongValue(at, "an object with schemas");
    for (const common::JsonMember member : at.schema.Members()) {
      const SchemaRef ref = {member.value, PointerTo(at.pointer, member.key)};
      RETURN_IF_ERROR(CheckSchema(ref));
      if (key == "properties") {
        object.properties.emplace_back(std::string(member.key), SchemaSet{ref});
      } else {
        object.pattern_properties.emplace_back(std::string(member.key), ref);
      }
    }
  } else if (key == "required") {
    if (!at.schema.IsArray()) return WrongValue(at, "a list of strings");
    absl::flat_hash_set<std::string_view> names;
    for (const JsonValue name : at.schema.Elements()) {
      if (!name.IsString()) return WrongValue(at, "a list of strings");
      if (names.insert(*name.String()).second) object.required.emplace_back(*name.String());
    }
  } else if (key == "additionalProperties") {
    RETURN_IF_ERROR(CheckSchema(at));
    object.additional = {at};
  } else if (key == "propertyNames") {
    RETURN_IF_ERROR(CheckSchema(at));
    object.names = {at};
  } else if (key == "minProperties") {
    ASSIGN_OR_RETURN(object.min_properties, ReadCount(at));
  } else if (key == "maxProperties") {
    ASSIGN_OR_RETURN(object.max_properties, ReadCount(at));
  } else {
    known = false;
  }
  return absl::OkStatus();
}

absl::StatusOr<SchemaRef> SchemaReader::Resolve(const SchemaRef& at) const {
  if (!at.schema.IsString()) return WrongValue(at, "a string");
  const std::optional<FoundValue> found = FindByPointer(root_, *at.schema.String());
  if (!found.has_value()) {
    return InvalidConstraint(
        at.pointer, absl::StrCat("\"", Shown(*at.schema.String()),
                                 "\" is no place in the schema; references begin with # and "
                                 "have a JSON pointer behind it"));
  }
  return SchemaRef{found->value, found->pointer};
}

}  // namespace retroinfer::constraint
