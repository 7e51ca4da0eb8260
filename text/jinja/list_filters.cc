#include "text/jinja/list_filters.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/status/status_macros.h"
#include "text/jinja/access.h"
#include "text/jinja/call.h"
#include "text/jinja/errors.h"
#include "text/jinja/methods.h"
#include "text/jinja/operators.h"
#include "text/jinja/predicates.h"
#include "text/jinja/text_functions.h"

namespace retroinfer::jinja {
namespace {

using Result = absl::StatusOr<Value>;

// Filters that Jinja runs when their result is used: an input that does not fit fails only then.
template <Filter kFilter>
Result Lazy(Workspace& workspace, const Value& input, const Arguments& arguments) {
  Result result = kFilter(workspace, input, arguments);
  if (result.ok() || !absl::IsInvalidArgument(result.status())) return result;
  return Value(std::make_shared<const Sequence>(Sequence{.kind = Sequence::Kind::kGenerator,
                                                         .items = {},
                                                         .depth = 1,
                                                         .holds_objects = false,
                                                         .charge = Charge(),
                                                         .failure = result.status()}));
}

Result LengthFilter(Workspace& workspace, const Value& input, const Arguments& arguments) {
  RETURN_IF_ERROR(BoundArguments::Bind("length", arguments, {}).status());
  if (input.AsText() != nullptr) RETURN_IF_ERROR(workspace.Expect(input.AsText()->size()));
  ASSIGN_OR_RETURN(const Int length, Length(input));
  return Value(length);
}

Result DefaultFilter(Workspace& workspace, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound,
                   BoundArguments::Bind("default", arguments, {"default_value", "boolean"}));
  if (!input.is_undefined() && !(bound.TruthOr(1, false) && !IsTrue(input))) return input;
  if (bound[0] == nullptr) return workspace.String("");
  return *bound[0];
}

Result FirstFilter(Workspace& workspace, const Value& input, const Arguments&) {
  if (const Text* const text = input.AsText(); text != nullptr && !text->empty()) {
    return GetItem(workspace, input, Value(Int{0}));
  }
  ASSIGN_OR_RETURN(const Items items, Iterate(workspace, input));
  if (items->empty()) return Value::Missing({"No first item, sequence was empty."});
  return items->front();
}

Result LastFilter(Workspace& workspace, const Value& input, const Arguments&) {
  if (const Text* const text = input.AsText(); text != nullptr && !text->empty()) {
    return GetItem(workspace, input, Value(Int{-1}));
  }
  ASSIGN_OR_RETURN(const Items items, Iterate(workspace, input));
  if (items->empty()) return Value::Missing({"No last item, sequence was empty."});
  return items->back();
}

Result ListFilter(Workspace& workspace, const Value& input, const Arguments&) {
  ASSIGN_OR_RETURN(const Items items, Iterate(workspace, input));
  return workspace.List(*items);
}

Result ReverseFilter(Workspace& workspace, const Value& input, const Arguments&) {
  if (input.AsText() != nullptr) {
    return Slice(workspace, input, None(), None(), Value(Int{-1}));
  }
  ASSIGN_OR_RETURN(const Items items, Iterate(workspace, input));
  return workspace.Items(Sequence::Kind::kGenerator, Values(items->rbegin(), items->rend()));
}

Result ItemsFilter(Workspace& workspace, const Value& input, const Arguments&) {
  Values items;
  if (!input.is_undefined()) {
    if (input.AsDict() == nullptr) return Error({"Can only get item pairs from a mapping."});
    for (const Dict::Entry& entry : input.AsDict()->entries) {
      ASSIGN_OR_RETURN(items.emplace_back(),
                       workspace.Items(Sequence::Kind::kTuple, {entry.first, entry.second}));
    }
  }
  return workspace.Items(Sequence::Kind::kGenerator, std::move(items));
}

// Sorting, choosing the least and dropping doubles compare texts in lower case if wanted.
Value SortKey(Value value, bool case_sensitive) {
  if (case_sensitive || value.AsText() == nullptr) return value;
  return Value::OfText(Lower(*value.AsText()));
}

// Sorts `items` by `keys`, keeping the order of equal ones; the first error ends it.
absl::StatusOr<Values> SortBy(Workspace& workspace, const Values& items, const Values& keys,
                              bool reverse) {
  std::vector<size_t> order(items.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  // Merging from the bottom up: a comparison that fails halfway through does no harm.
  std::vector<size_t> merged(order.size());
  for (size_t width = 1; width < order.size(); width *= 2) {
    for (size_t begin = 0; begin < order.size(); begin += 2 * width) {
      size_t a = begin;
      const size_t a_end = std::min(begin + width, order.size());
      size_t b = a_end;
      const size_t b_end = std::min(begin + 2 * width, order.size());
      for (size_t out = begin; out < b_end; ++out) {
        bool take_b = a == a_end;
        if (!take_b && b < b_end) {
          ASSIGN_OR_RETURN(take_b, reverse ? Less(workspace, keys[order[a]], keys[order[b]])
                                           : Less(workspace, keys[order[b]], keys[order[a]]));
        }
        merged[out] = take_b ? order[b++] : order[a++];
      }
    }
    order.swap(merged);
  }
  Values sorted;
  sorted.reserve(order.size());
  for (const size_t index : order) sorted.push_back(items[index]);
  return sorted;
}

absl::StatusOr<Values> KeysOf(Workspace& workspace, const Values& items, const Value* attribute,
                              bool case_sensitive) {
  Values keys;
  for (const Value& item : items) {
    Value key = item;
    if (attribute != nullptr && !attribute->is_none()) {
      ASSIGN_OR_RETURN(key, AttributePath(workspace, item, *attribute));
    }
    if (key.AsText() != nullptr) RETURN_IF_ERROR(workspace.Expect(2 * key.AsText()->size()));
    keys.push_back(SortKey(std::move(key), case_sensitive));
  }
  return keys;
}

Result SortFilter(Workspace& workspace, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(
      const auto bound,
      BoundArguments::Bind("sort", arguments, {"reverse", "case_sensitive", "attribute"}));
  ASSIGN_OR_RETURN(const Items items, Iterate(workspace, input));
  ASSIGN_OR_RETURN(const Values keys, KeysOf(workspace, *items, bound[2], bound.TruthOr(1, false)));
  ASSIGN_OR_RETURN(Values sorted, SortBy(workspace, *items, keys, bound.TruthOr(0, false)));
  return workspace.List(std::move(sorted));
}

Result DictSortFilter(Workspace& workspace, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, BoundArguments::Bind("dictsort", arguments,
                                                          {"case_sensitive", "by", "reverse"}));
  ASSIGN_OR_RETURN(const Text by, bound.TextOr(1, "key"));
  if (by.bytes() != "key" && by.bytes() != "value") {
    return Error({"You can only sort by either \"key\" or \"value\""});
  }
  if (input.is_undefined()) return input.UndefinedError();
  if (input.AsDict() == nullptr) return Error({"dictsort() takes a dict"});
  Values pairs;
  for (const Dict::Entry& entry : input.AsDict()->entries) {
    ASSIGN_OR_RETURN(pairs.emplace_back(),
                     workspace.Items(Sequence::Kind::kTuple, {entry.first, entry.second}));
  }
  const Value place(Int{by.bytes() == "key" ? 0 : 1});
  ASSIGN_OR_RETURN(const Values keys, KeysOf(workspace, pairs, &place, bound.TruthOr(0, false)));
  ASSIGN_OR_RETURN(Values sorted, SortBy(workspace, pairs, keys, bound.TruthOr(2, false)));
  return workspace.List(std::move(sorted));
}

Result UniqueFilter(Workspace& workspace, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound,
                   BoundArguments::Bind("unique", arguments, {"case_sensitive", "attribute"}));
  ASSIGN_OR_RETURN(const Items items, Iterate(workspace, input));
  ASSIGN_OR_RETURN(const Values keys, KeysOf(workspace, *items, bound[1], bound.TruthOr(0, false)));
  Values kept;
  Values kept_keys;
  for (size_t i = 0; i < items->size(); ++i) {
    bool seen = false;
    for (size_t j = 0; j < kept_keys.size() && !seen; ++j) {
      ASSIGN_OR_RETURN(seen, Equal(workspace, kept_keys[j], keys[i]));
    }
    if (seen) continue;
    kept.push_back((*items)[i]);
    kept_keys.push_back(keys[i]);
  }
  return workspace.Items(Sequence::Kind::kGenerator, std::move(kept));
}

template <bool kMax>
Result ExtremeFilter(Workspace& workspace, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound,
                   BoundArguments::Bind("min", arguments, {"case_sensitive", "attribute"}));
  ASSIGN_OR_RETURN(const Items items, Iterate(workspace, input));
  if (items->empty()) return Value::Missing({"No aggregated item, sequence was empty."});
  ASSIGN_OR_RETURN(const Values keys, KeysOf(workspace, *items, bound[1], bound.TruthOr(0, false)));
  size_t best = 0;
  for (size_t i = 1; i < keys.size(); ++i) {
    ASSIGN_OR_RETURN(const bool better, kMax ? Less(workspace, keys[best], keys[i])
                                             : Less(workspace, keys[i], keys[best]));
    if (better) best = i;
  }
  return (*items)[best];
}

Result SumFilter(Workspace& workspace, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound,
                   BoundArguments::Bind("sum", arguments, {"attribute", "start"}));
  ASSIGN_OR_RETURN(const Items items, Iterate(workspace, input));
  Value sum = bound[1] == nullptr ? Value(Int{0}) : *bound[1];
  for (const Value& item : *items) {
    Value term = item;
    if (bound[0] != nullptr && !bound[0]->is_none()) {
      ASSIGN_OR_RETURN(term, AttributePath(workspace, item, *bound[0]));
    }
    RETURN_IF_ERROR(workspace.Spend(1));
    ASSIGN_OR_RETURN(sum, Apply(workspace, Operator::kAdd, sum, term));
  }
  return sum;
}

Result BatchFilter(Workspace& workspace, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound,
                   BoundArguments::Bind("batch", arguments, {"linecount", "fill_with"}, 1));
  ASSIGN_OR_RETURN(const Items items, Iterate(workspace, input));
  ASSIGN_OR_RETURN(const Int count, bound.IntOr(0, 1));
  if (count < 1) return Error({"batch() takes a number above 0"});
  const bool fills = bound[1] != nullptr && !bound[1]->is_none();
  Values batches;
  for (size_t begin = 0; begin < items->size();) {
    const auto size =
        static_cast<size_t>(std::min<Int>(count, static_cast<Int>(items->size() - begin)));
    Values batch(items->begin() + static_cast<ptrdiff_t>(begin),
                 items->begin() + static_cast<ptrdiff_t>(begin + size));
    if (fills && static_cast<Int>(size) < count) {
      if (count > 1'000'000) return OverLimit({"batch() of more than 1000000"});
      RETURN_IF_ERROR(workspace.Expect(static_cast<size_t>(count) * sizeof(Value)));
      batch.resize(static_cast<size_t>(count), *bound[1]);
    }
    ASSIGN_OR_RETURN(batches.emplace_back(), workspace.List(std::move(batch)));
    begin += size;
  }
  return workspace.Items(Sequence::Kind::kGenerator, std::move(batches));
}

// The arguments of map, select and reject behind the name of a filter or test.
absl::StatusOr<std::pair<std::string, Arguments>> NamedCall(const Arguments& arguments,
                                                            size_t place) {
  if (arguments.positional.size() <= place || arguments.positional[place].AsText() == nullptr) {
    return Error({"the name of a filter or test is missing"});
  }
  Arguments rest;
  rest.positional.assign(arguments.positional.begin() + static_cast<ptrdiff_t>(place) + 1,
                         arguments.positional.end());
  rest.named = arguments.named;
  return std::make_pair(arguments.positional[place].AsText()->bytes(), std::move(rest));
}

Result MapFilter(Workspace& workspace, const Value& input, const Arguments& arguments) {
  if (!IsTrue(input)) return workspace.Items(Sequence::Kind::kGenerator, {});  // none, too
  ASSIGN_OR_RETURN(const Items items, Iterate(workspace, input));
  Values mapped;
  const bool by_attribute = arguments.positional.empty();
  if (by_attribute) {
    ASSIGN_OR_RETURN(const auto bound,
                     BoundArguments::Bind("map", arguments, {"attribute", "default"}, 1));
    for (const Value& item : *items) {
      RETURN_IF_ERROR(workspace.Spend(1));
      ASSIGN_OR_RETURN(mapped.emplace_back(), AttributePath(workspace, item, *bound[0], bound[1]));
    }
    return workspace.Items(Sequence::Kind::kGenerator, std::move(mapped));
  }
  ASSIGN_OR_RETURN(const auto call, NamedCall(arguments, 0));
  const Filter filter = FindFilter(call.first);
  if (filter == nullptr) return Unsupported({"the filter '", call.first, "'"});
  for (const Value& item : *items) {
    RETURN_IF_ERROR(workspace.Spend(1));
    ASSIGN_OR_RETURN(mapped.emplace_back(), filter(workspace, item, call.second));
  }
  return workspace.Items(Sequence::Kind::kGenerator, std::move(mapped));
}

// select, reject, selectattr and rejectattr.
template <bool kKeeps, bool kByAttribute>
Result SelectFilter(Workspace& workspace, const Value& input, const Arguments& arguments) {
  constexpr size_t kTestPlace = kByAttribute ? 1 : 0;
  if (kByAttribute && arguments.positional.empty()) return Error({"Missing parameter: attribute"});
  Predicate test = nullptr;
  Arguments rest;
  if (arguments.positional.size() > kTestPlace) {
    ASSIGN_OR_RETURN(const auto call, NamedCall(arguments, kTestPlace));
    test = FindPredicate(call.first);
    if (test == nullptr) return Unsupported({"the test '", call.first, "'"});
    rest = call.second;
  }
  if (!IsTrue(input)) return workspace.Items(Sequence::Kind::kGenerator, {});  // none, too
  ASSIGN_OR_RETURN(const Items items, Iterate(workspace, input));
  Values kept;
  for (const Value& item : *items) {
    RETURN_IF_ERROR(workspace.Spend(1));
    Value subject = item;
    if (kByAttribute) {
      ASSIGN_OR_RETURN(subject, AttributePath(workspace, item, arguments.positional[0]));
    }
    bool holds = IsTrue(subject);
    if (test != nullptr) {
      ASSIGN_OR_RETURN(holds, test(workspace, subject, rest));
    }
    if (holds == kKeeps) kept.push_back(item);
  }
  return workspace.Items(Sequence::Kind::kGenerator, std::move(kept));
}

Result AttrFilter(Workspace& workspace, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, BoundArguments::Bind("attr", arguments, {"name"}, 1));
  ASSIGN_OR_RETURN(const Text name, bound.TextOr(0, ""));
  if (input.AsObject() != nullptr) return GetAttribute(workspace, input, name.bytes());
  ASSIGN_OR_RETURN(std::optional<Value> method, FindMethod(input, name.bytes()));
  if (method.has_value()) return *std::move(method);
  return Value::Missing({"'", input.TypeName(), " object' has no attribute '", name.bytes(), "'"});
}

// Items with equal attributes together, as pairs in the order of the attribute.
Result GroupByFilter(Workspace& workspace, const Value& input, const Arguments& arguments) {
  ASSIGN_OR_RETURN(
      const auto bound,
      BoundArguments::Bind("groupby", arguments, {"attribute", "default", "case_sensitive"}, 1));
  ASSIGN_OR_RETURN(const Items items, Iterate(workspace, input));
  ASSIGN_OR_RETURN(const Values keys, KeysOf(workspace, *items, bound[0], bound.TruthOr(2, false)));
  Values pairs;
  for (size_t i = 0; i < keys.size(); ++i) {
    ASSIGN_OR_RETURN(pairs.emplace_back(),
                     workspace.Items(Sequence::Kind::kTuple, {keys[i], (*items)[i]}));
  }
  ASSIGN_OR_RETURN(const Values sorted, SortBy(workspace, pairs, keys, false));
  Values groups;
  for (size_t begin = 0; begin < sorted.size();) {
    const Value& key = sorted[begin].AsSequence()->items[0];
    Values members;
    size_t end = begin;
    for (; end < sorted.size(); ++end) {
      ASSIGN_OR_RETURN(const bool equal, Equal(workspace, key, sorted[end].AsSequence()->items[0]));
      if (!equal) break;
      members.push_back(sorted[end].AsSequence()->items[1]);
    }
    const Value first_member = members.front();
    ASSIGN_OR_RETURN(const Value shown_key, AttributePath(workspace, first_member, *bound[0]));
    ASSIGN_OR_RETURN(const Value list, workspace.List(std::move(members)));
    ASSIGN_OR_RETURN(groups.emplace_back(),
                     workspace.Items(Sequence::Kind::kTuple, {shown_key, list}));
    begin = end;
  }
  return workspace.List(std::move(groups));
}

}  // namespace

absl::StatusOr<Value> AttributePath(Workspace& workspace, const Value& value, const Value& path,
                                    const Value* fallback) {
  const bool has_fallback = fallback != nullptr && !fallback->is_none();
  if (path.AsInt().has_value()) {
    ASSIGN_OR_RETURN(Value item, GetItem(workspace, value, path));
    return item.is_undefined() && has_fallback ? *fallback : item;
  }
  if (path.AsText() == nullptr) return Error({"an attribute is named by a string or a number"});
  Value found = value;
  std::string_view rest = path.AsText()->bytes();
  while (true) {
    const std::string_view name = rest.substr(0, rest.find('.'));
    int64_t index = 0;
    const bool is_index = !name.empty() &&
                          name.find_first_not_of("0123456789") == std::string_view::npos &&
                          absl::SimpleAtoi(absl::string_view(name.data(), name.size()), &index);
    const Value key = is_index ? Value(static_cast<Int>(index)) : Value::OfText(Text(name, false));
    ASSIGN_OR_RETURN(found, GetItem(workspace, found, key));
    if (found.is_undefined() && has_fallback) found = *fallback;
    if (name.size() == rest.size()) return found;
    rest.remove_prefix(name.size() + 1);
  }
}

const absl::flat_hash_map<std::string, Filter>& ListFilters() {
  static const auto* const kFilters = new absl::flat_hash_map<std::string, Filter>{
      {"length", LengthFilter},
      {"count", LengthFilter},
      {"default", DefaultFilter},
      {"d", DefaultFilter},
      {"first", FirstFilter},
      {"last", LastFilter},
      {"list", ListFilter},
      {"reverse", ReverseFilter},
      {"items", Lazy<ItemsFilter>},
      {"sort", SortFilter},
      {"dictsort", DictSortFilter},
      {"unique", Lazy<UniqueFilter>},
      {"min", ExtremeFilter<false>},
      {"max", ExtremeFilter<true>},
      {"sum", SumFilter},
      {"batch", Lazy<BatchFilter>},
      {"map", Lazy<MapFilter>},
      {"select", Lazy<SelectFilter<true, false>>},
      {"reject", Lazy<SelectFilter<false, false>>},
      {"selectattr", Lazy<SelectFilter<true, true>>},
      {"rejectattr", Lazy<SelectFilter<false, true>>},
      {"attr", AttrFilter},
      {"groupby", GroupByFilter},
  };
  return *kFilters;
}

}  // namespace retroinfer::jinja
