#include "text/constraint/schema_containers.h"

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "text/constraint/invalid_constraint.h"
#include "text/constraint/schema_scalars.h"
#include "text/tokenizer/utf8.h"

namespace retroinfer::constraint {
namespace {

using common::JsonValue;

// Subsets of a list of values are states.
constexpr size_t kUniqueValuesMax = 10;

bool AcceptsNothing(const SchemaSet& set) {
  return std::any_of(set.begin(), set.end(),
                     [](const SchemaRef& ref) { return ref.schema.Bool() == false; });
}

absl::Status TooMany(std::string_view pointer, std::string_view keywords, const Limits& limits) {
  return InvalidConstraint(pointer, absl::StrCat(std::string(keywords), " need more than ",
                                                 limits.nodes_max, " states; use smaller numbers"));
}

// Different values of a short list, in any order.
absl::StatusOr<ExpressionPtr> CompileUnique(const ArrayDemands& array, std::string_view pointer,
                                            const SchemaContext& context) {
  ASSIGN_OR_RETURN(const SchemaNode node, context.read(array.items));
  if (!array.prefix.empty() || !node.values.has_value() || !node.choices.empty() ||
      node.values->size() > kUniqueValuesMax) {
    return InvalidConstraint(
        pointer, absl::StrCat("\"uniqueItems\": true is supported with \"maxItems\": 1, and for "
                              "items with an \"enum\" of at most ",
                              kUniqueValuesMax, " values"));
  }
  std::vector<ExpressionPtr> values;
  std::vector<JsonValue> seen;
  for (const JsonValue& value : *node.values) {
    if (std::any_of(seen.begin(), seen.end(),
                    [&value](const JsonValue& other) { return value.SameAs(other); })) {
      continue;
    }
    seen.push_back(value);
    SchemaNode one = node;
    one.values = {value};
    ASSIGN_OR_RETURN(ExpressionPtr literal, CompileValues(one, context.json));
    values.push_back(std::move(literal));
  }
  const size_t num_subsets = size_t{1} << values.size();
  std::vector<GraphState> states(num_subsets + 1);
  states[num_subsets].accepts = true;
  for (size_t subset = 0; subset < num_subsets; ++subset) {
    const auto size = static_cast<size_t>(__builtin_popcountll(subset));
    if (size >= array.min_items && size <= array.max_items.value_or(size)) {
      const ExpressionPtr space = size == 0 ? nullptr : context.json.Space();
      states[subset].edges.push_back({space, static_cast<uint32_t>(num_subsets)});
    }
    for (size_t i = 0; i < values.size(); ++i) {
      if ((subset >> i & 1) != 0) continue;
      ExpressionPtr item = values[i];
      if (size > 0) item = Sequence({context.json.Comma(), std::move(item)});
      states[subset].edges.push_back(
          {std::move(item), static_cast<uint32_t>(subset | size_t{1} << i)});
    }
  }
  return Sequence({Bytes("["), context.json.Space(), Graph(std::move(states)), Bytes("]")});
}

// Counts members, as far as it makes a difference, beside the index of the next listed property.
class ObjectGraph {
 public:
  ObjectGraph(const ObjectDemands& object, std::string_view pointer, const SchemaContext& context)
      : object_(object), pointer_(pointer), context_(context) {
    for (const std::string& name : object.required) required_.insert(name);
    for (const auto& [name, set] : object.properties) {
      members_.push_back({name, &set, required_.contains(name)});
      named_.insert(name);
    }
    for (const std::string& name : object.required) {
      if (!named_.contains(name)) members_.push_back({name, &object.additional, true});
      named_.insert(name);
    }
    count_max_ = std::max<size_t>({1, object.min_properties, object.max_properties.value_or(0)});
  }

  absl::StatusOr<ExpressionPtr> Build() {
    if (count_max_ > context_.limits.nodes_max ||
        (members_.size() + 1) * (count_max_ + 1) > context_.limits.nodes_max) {
      return TooMany(pointer_, "\"minProperties\" and \"maxProperties\"", context_.limits);
    }
    ASSIGN_OR_RETURN(const ExpressionPtr additional, AdditionalMember());
    states_.resize((members_.size() + 1) * (count_max_ + 1) + 1);
    states_.back().accepts = true;
    std::vector<ExpressionPtr> listed;
    for (const Member& member : members_) {
      listed.push_back(
          context_.json.Member(JsonStringLiteral(member.name), context_.call(*member.set)));
    }
    for (size_t index = 0; index <= members_.size(); ++index) {
      for (size_t count = 0; count <= count_max_; ++count) {
        std::vector<GraphEdge>& edges = states_[StateOf(index, count)].edges;
        if (index < members_.size()) {
          AddEdge(listed[index], count, index + 1, edges);
          if (!members_[index].is_required) edges.push_back({nullptr, StateOf(index + 1, count)});
          continue;
        }
        if (additional != nullptr) AddEdge(additional, count, index, edges);
        if (count >= object_.min_properties) {
          edges.push_back({count == 0 ? nullptr : context_.json.Space(),
                           static_cast<uint32_t>(states_.size() - 1)});
        }
      }
    }
    return Sequence({Bytes("{"), context_.json.Space(), Graph(std::move(states_)), Bytes("}")});
  }

 private:
  struct Member {
    std::string_view name;
    const SchemaSet* set;
    bool is_required;
  };

  uint32_t StateOf(size_t index, size_t count) const {
    return static_cast<uint32_t>(index * (count_max_ + 1) + count);
  }

  void AddEdge(const ExpressionPtr& member, size_t count, size_t next_index,
               std::vector<GraphEdge>& edges) {
    if (object_.max_properties.has_value() && count >= *object_.max_properties) return;
    const size_t next_count = std::min(count + 1, count_max_);
    edges.push_back({count == 0 ? member : Sequence({context_.json.Comma(), member}),
                     StateOf(next_index, next_count)});
  }

  // A member that is not listed; nullptr if there are none.
  absl::StatusOr<ExpressionPtr> AdditionalMember() {
    if (!object_.pattern_properties.empty()) return PatternMember();
    if (AcceptsNothing(object_.additional)) return ExpressionPtr();
    // The schema lists properties and says nothing of others. An object without others is of the
    // schema, and a model that may always go on with one more key does not always come to an end.
    const bool is_unsaid = object_.additional.empty() && object_.names.empty();
    if (is_unsaid && !object_.properties.empty() && object_.min_properties <= members_.size()) {
      return ExpressionPtr();
    }
    ExpressionPtr key = object_.properties.empty() && object_.required.empty()
                            ? context_.json.String()
                            : OtherKey();
    if (!object_.names.empty()) {
      if (!named_.empty()) {
        return InvalidConstraint(
            pointer_,
            "\"propertyNames\" together with \"properties\" or \"required\" is not "
            "supported");
      }
      ASSIGN_OR_RETURN(SchemaNode names, context_.read(object_.names));
      if (!names.choices.empty()) {
        return InvalidConstraint(pointer_,
                                 "anyOf and oneOf in \"propertyNames\" are not supported");
      }
      if ((names.types & kStringType) == 0) return ExpressionPtr();
      names.types = kStringType;
      ASSIGN_OR_RETURN(key,
                       names.values.has_value()
                           ? CompileValues(names, context_.json)
                           : CompileString(names.string, pointer_, context_.json, context_.limits));
    }
    return context_.json.Member(std::move(key), context_.call(object_.additional));
  }

  absl::StatusOr<ExpressionPtr> PatternMember() {
    if (object_.pattern_properties.size() > 1 || !named_.empty() || !object_.names.empty() ||
        !AcceptsNothing(object_.additional)) {
      return InvalidConstraint(pointer_,
                               "\"patternProperties\" is supported with one pattern, together with "
                               "\"additionalProperties\": false and without \"properties\"");
    }
    const auto& [pattern, ref] = object_.pattern_properties[0];
    ASSIGN_OR_RETURN(ExpressionPtr key, CompileString({.patterns = {pattern}}, ref.pointer,
                                                      context_.json, context_.limits));
    return context_.json.Member(std::move(key), context_.call({ref}));
  }

  // A string without escapes that is no listed key: a trie of the keys, and a way out of the trie
  // at each character.
  ExpressionPtr OtherKey() {
    struct TrieNode {
      std::map<char32_t, uint32_t> children;
      bool is_key = false;
    };
    std::vector<TrieNode> trie(1);
    for (const std::string_view name : named_) {
      uint32_t node = 0;
      for (std::string_view rest = name; !rest.empty();) {
        const Utf8Step step = NextUtf8(rest);
        rest.remove_prefix(step.length);
        const auto [child, is_new] =
            trie[node].children.try_emplace(step.code, static_cast<uint32_t>(trie.size()));
        node = child->second;
        if (is_new) trie.emplace_back();
      }
      trie[node].is_key = true;
    }
    const CodePointSet text = CharactersOf(TextSet::kJsonText);
    const auto other = static_cast<uint32_t>(trie.size());
    std::vector<GraphState> states(trie.size() + 1);
    for (uint32_t node = 0; node < trie.size(); ++node) {
      CodePointSet children;
      for (const auto& [code, child] : trie[node].children) {
        children.Add(code, code);
        if (text.Contains(code)) {
          states[node].edges.push_back({Characters({{code, code}}), child});
        }
      }
      states[node].edges.push_back({Characters(text.Minus(children)), other});
      states[node].accepts = !trie[node].is_key;
    }
    states[other] = {
        .edges = {{Characters(text), other}}, .accepts = true, .text_set = TextSet::kJsonText};
    return Sequence({Bytes("\""), Graph(std::move(states)), Bytes("\"")});
  }

  const ObjectDemands& object_;
  const std::string_view pointer_;
  const SchemaContext& context_;
  std::vector<Member> members_;
  absl::flat_hash_set<std::string_view> required_;
  absl::flat_hash_set<std::string_view> named_;
  size_t count_max_;
  std::vector<GraphState> states_;
};

}  // namespace

absl::StatusOr<ExpressionPtr> CompileArray(const ArrayDemands& array, std::string_view pointer,
                                           const SchemaContext& context) {
  JsonSyntax& json = context.json;
  const size_t max = array.max_items.value_or(SIZE_MAX);
  if (array.is_unique && max > 1) return CompileUnique(array, pointer, context);
  // State i has i items before it; the last one goes round where there is no end.
  const size_t num_counted =
      array.max_items.value_or(std::max({size_t{1}, array.min_items, array.prefix.size()}));
  if (num_counted > context.limits.nodes_max) {
    return TooMany(pointer, "\"minItems\" and \"maxItems\"", context.limits);
  }
  std::vector<GraphState> states(num_counted + 2);
  const auto end = static_cast<uint32_t>(num_counted + 1);
  states[end].accepts = true;
  const ExpressionPtr rest = AcceptsNothing(array.items) ? nullptr : context.call(array.items);
  const auto item_at = [&](size_t index) {
    const ExpressionPtr item =
        index < array.prefix.size() ? context.call(array.prefix[index]) : rest;
    return index == 0 || item == nullptr ? item : Sequence({json.Comma(), item});
  };
  for (size_t i = 0; i <= num_counted; ++i) {
    if (i >= array.min_items) states[i].edges.push_back({i == 0 ? nullptr : json.Space(), end});
    const bool goes_round = i == num_counted;
    if (goes_round && array.max_items.has_value()) continue;
    if (ExpressionPtr item = item_at(i); item != nullptr) {
      states[i].edges.push_back({std::move(item), static_cast<uint32_t>(goes_round ? i : i + 1)});
    }
  }
  return Sequence({Bytes("["), json.Space(), Graph(std::move(states)), Bytes("]")});
}

absl::StatusOr<ExpressionPtr> CompileObject(const ObjectDemands& object, std::string_view pointer,
                                            const SchemaContext& context) {
  return ObjectGraph(object, pointer, context).Build();
}

}  // namespace retroinfer::constraint
