// Each set of schemas that a value must fulfil is a rule, so that references to what is around them
// work. Rules are compiled one after the other, not in each other: the stack does not grow with the
// schema.
#include "text/constraint/schema_compiler.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "common/json/json_document.h"
#include "common/status/status_macros.h"
#include "text/constraint/invalid_constraint.h"
#include "text/constraint/schema_containers.h"
#include "text/constraint/schema_disjoint.h"
#include "text/constraint/schema_reader.h"
#include "text/constraint/schema_scalars.h"

namespace retroinfer::constraint {
namespace {

class Compiler {
 public:
  Compiler(common::JsonValue root, const Limits& limits, Grammar& grammar, JsonSyntax& json)
      : limits_(limits),
        grammar_(grammar),
        json_(json),
        reader_(root, limits),
        context_{.json = json,
                 .limits = limits,
                 .call = [this](const SchemaSet& set) { return Call(set); },
                 .read = [this](const SchemaSet& set) { return reader_.Read(set); }} {}

  absl::StatusOr<ExpressionPtr> Run() {
    ExpressionPtr root = Call({reader_.root()});
    while (!pending_.empty()) {
      const auto [rule, set] = std::move(pending_.back());
      pending_.pop_back();
      ASSIGN_OR_RETURN(const SchemaNode node, reader_.Read(set));
      ASSIGN_OR_RETURN(grammar_.rules[rule].body, Compile(node, set.size() == 1, 0));
    }
    return root;
  }

 private:
  ExpressionPtr Call(const SchemaSet& set) {
    if (set.empty()) return json_.Value();
    std::string key;
    for (const SchemaRef& ref : set) absl::StrAppend(&key, ref.pointer, "\n");
    const auto [known, is_new] = rules_.try_emplace(key, grammar_.rules.size());
    if (is_new) {
      grammar_.Add(set.front().pointer);
      pending_.emplace_back(known->second, set);
    }
    return CallRule(known->second);
  }

  // `is_one_schema`: the node is of one schema and what that refers to.
  absl::StatusOr<ExpressionPtr> Compile(const SchemaNode& node, bool is_one_schema, size_t depth) {
    if (node.choices.empty()) return CompileTypes(node);
    if (depth > limits_.nesting_max) {
      return InvalidConstraint(node.pointer,
                               absl::StrCat("has anyOf or oneOf deeper than ", limits_.nesting_max,
                                            " in each other, or one that refers to itself"));
    }
    SchemaNode base = node;
    const SchemaNode::Choice choice = std::move(base.choices.back());
    base.choices.pop_back();
    std::vector<SchemaNode> branches;
    for (const SchemaRef& branch : choice.branches) {
      branches.push_back(base);
      RETURN_IF_ERROR(reader_.Add(branch, branches.back()));
    }
    if (choice.is_exclusive) RETURN_IF_ERROR(CheckExclusive(choice, branches));
    std::vector<ExpressionPtr> parts;
    for (size_t i = 0; i < branches.size(); ++i) {
      // Branches that stand alone are rules of their own: many schemas may share them.
      if (is_one_schema && IsUnconstrained(base)) {
        parts.push_back(Call({choice.branches[i]}));
        continue;
      }
      ASSIGN_OR_RETURN(ExpressionPtr part, Compile(branches[i], false, depth + 1));
      parts.push_back(std::move(part));
    }
    return Alternatives(std::move(parts));
  }

  absl::Status CheckExclusive(const SchemaNode::Choice& choice,
                              const std::vector<SchemaNode>& branches) {
    for (size_t i = 0; i < branches.size(); ++i) {
      RETURN_IF_ERROR(reader_.Charge(i / 8, choice.pointer));  // comparing is cheaper than reading
      for (size_t j = 0; j < i; ++j) {
        ASSIGN_OR_RETURN(const bool disjoint, AreDisjoint(branches[j], branches[i], reader_));
        if (disjoint) continue;
        return InvalidConstraint(
            choice.pointer,
            absl::StrCat("branches ", j, " and ", i,
                         " may both accept a value; make them differ by type, or by \"const\" or "
                         "\"enum\" of a required property, or use anyOf"));
      }
    }
    return absl::OkStatus();
  }

  static bool IsUnconstrained(const SchemaNode& node) {
    const ObjectDemands& object = node.object;
    const ArrayDemands& array = node.array;
    const StringDemands& string = node.string;
    const NumberDemands& number = node.number;
    return node.types == kAllTypes && !node.values.has_value() && node.choices.empty() &&
           object.properties.empty() && object.required.empty() && object.additional.empty() &&
           object.names.empty() && object.pattern_properties.empty() &&
           object.min_properties == 0 && !object.max_properties.has_value() &&
           array.prefix.empty() && array.items.empty() && array.min_items == 0 &&
           !array.max_items.has_value() && !array.is_unique && string.min_length == 0 &&
           !string.max_length.has_value() && string.patterns.empty() && string.formats.empty() &&
           !number.min.has_value() && !number.max.has_value() && number.multiples_of.empty();
  }

  absl::StatusOr<ExpressionPtr> CompileTypes(const SchemaNode& node) {
    if (node.values.has_value()) return CompileValues(node, json_);
    if (IsUnconstrained(node)) return json_.Value();
    std::vector<ExpressionPtr> parts;
    if ((node.types & kNullType) != 0) parts.push_back(json_.Null());
    if ((node.types & kBooleanType) != 0) parts.push_back(json_.Boolean());
    if (const TypeBits numbers = node.types & kNumberTypes; numbers != 0) {
      ASSIGN_OR_RETURN(ExpressionPtr part,
                       CompileNumber(node.number, numbers, node.pointer, json_));
      parts.push_back(std::move(part));
    }
    if ((node.types & kStringType) != 0) {
      ASSIGN_OR_RETURN(ExpressionPtr part,
                       CompileString(node.string, node.pointer, json_, limits_));
      parts.push_back(std::move(part));
    }
    if ((node.types & kArrayType) != 0) {
      ASSIGN_OR_RETURN(ExpressionPtr part, CompileArray(node.array, node.pointer, context_));
      parts.push_back(std::move(part));
    }
    if ((node.types & kObjectType) != 0) {
      ASSIGN_OR_RETURN(ExpressionPtr part, CompileObject(node.object, node.pointer, context_));
      parts.push_back(std::move(part));
    }
    return Alternatives(std::move(parts));
  }

  const Limits& limits_;
  Grammar& grammar_;
  JsonSyntax& json_;
  SchemaReader reader_;
  SchemaContext context_;
  absl::flat_hash_map<std::string, size_t> rules_;  // by the pointers of a set
  std::vector<std::pair<size_t, SchemaSet>> pending_;
};

}  // namespace

absl::StatusOr<ExpressionPtr> CompileJsonSchema(std::string_view schema, const Limits& limits,
                                                Grammar& grammar, JsonSyntax& json) {
  const auto document = common::JsonDocument::Parse(
      schema, {.bytes_max = limits.spec_bytes_max, .depth_max = limits.nesting_max});
  if (!document.ok()) {
    return InvalidConstraint("#", absl::StrCat("the schema ", document.status().message()));
  }
  return Compiler(document->root(), limits, grammar, json).Run();
}

}  // namespace retroinfer::constraint
