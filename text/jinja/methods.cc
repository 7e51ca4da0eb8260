#include "text/jinja/methods.h"

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/status/status_macros.h"
#include "text/jinja/access.h"
#include "text/jinja/call.h"
#include "text/jinja/errors.h"
#include "text/jinja/operators.h"
#include "text/jinja/string_methods.h"

namespace retroinfer::jinja {
namespace {

absl::StatusOr<Value> DictGet(Workspace& workspace, const Value& self, const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, BoundArguments::Bind("get", arguments, {"key", "default"}, 1));
  RETURN_IF_ERROR(CheckKey(*bound[0]));
  ASSIGN_OR_RETURN(const std::optional<Value> found, FindKey(workspace, *self.AsDict(), *bound[0]));
  if (found.has_value()) return *found;
  return bound[1] == nullptr ? Value(None()) : *bound[1];
}

absl::StatusOr<Value> DictItems(Workspace& workspace, const Value& self,
                                const Arguments& arguments) {
  RETURN_IF_ERROR(BoundArguments::Bind("items", arguments, {}).status());
  Values items;
  for (const Dict::Entry& entry : self.AsDict()->entries) {
    ASSIGN_OR_RETURN(items.emplace_back(),
                     workspace.Items(Sequence::Kind::kTuple, {entry.first, entry.second}));
  }
  return workspace.Items(Sequence::Kind::kItems, std::move(items));
}

absl::StatusOr<Value> DictKeys(Workspace& workspace, const Value& self,
                               const Arguments& arguments) {
  RETURN_IF_ERROR(BoundArguments::Bind("keys", arguments, {}).status());
  ASSIGN_OR_RETURN(const Items keys, Iterate(workspace, self));
  return workspace.Items(Sequence::Kind::kKeys, *keys);
}

absl::StatusOr<Value> DictValues(Workspace& workspace, const Value& self,
                                 const Arguments& arguments) {
  RETURN_IF_ERROR(BoundArguments::Bind("values", arguments, {}).status());
  Values values;
  for (const Dict::Entry& entry : self.AsDict()->entries) values.push_back(entry.second);
  return workspace.Items(Sequence::Kind::kValues, std::move(values));
}

absl::StatusOr<Value> Copy(Workspace&, const Value& self, const Arguments& arguments) {
  RETURN_IF_ERROR(BoundArguments::Bind("copy", arguments, {}).status());
  return self;  // nothing can change it
}

absl::StatusOr<Value> ListIndex(Workspace& workspace, const Value& self,
                                const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, BoundArguments::Bind("index", arguments, {"value"}, 1));
  const Values& items = self.AsSequence()->items;
  for (size_t i = 0; i < items.size(); ++i) {
    ASSIGN_OR_RETURN(const bool equal, Equal(workspace, items[i], *bound[0]));
    if (equal) return Value(static_cast<Int>(i));
  }
  return Error({"index(): the value is not in the list"});
}

absl::StatusOr<Value> ListCount(Workspace& workspace, const Value& self,
                                const Arguments& arguments) {
  ASSIGN_OR_RETURN(const auto bound, BoundArguments::Bind("count", arguments, {"value"}, 1));
  Int count = 0;
  for (const Value& item : self.AsSequence()->items) {
    ASSIGN_OR_RETURN(const bool equal, Equal(workspace, item, *bound[0]));
    if (equal) ++count;
  }
  return Value(count);
}

struct NamedMethod {
  std::string_view name;
  Method method;
};

constexpr std::array<NamedMethod, 5> kDictMethods = {{{"get", DictGet},
                                                      {"items", DictItems},
                                                      {"keys", DictKeys},
                                                      {"values", DictValues},
                                                      {"copy", Copy}}};
constexpr std::array<NamedMethod, 3> kListMethods = {
    {{"index", ListIndex}, {"count", ListCount}, {"copy", Copy}}};
constexpr std::array<NamedMethod, 2> kTupleMethods = {{{"index", ListIndex}, {"count", ListCount}}};

constexpr std::array<std::string_view, 5> kDictMutators = {"clear", "pop", "popitem", "setdefault",
                                                           "update"};
constexpr std::array<std::string_view, 8> kListMutators = {"append", "clear", "pop",    "reverse",
                                                           "insert", "sort",  "extend", "remove"};

template <typename Methods>
Method Find(const Methods& methods, std::string_view name) {
  for (const NamedMethod& item : methods) {
    if (item.name == name) return item.method;
  }
  return nullptr;
}

template <typename Names>
bool Has(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

class BoundMethod : public Object {
 public:
  BoundMethod(Value self, Method method) : self_(std::move(self)), method_(method) {}

  std::string_view type_name() const override { return "method"; }
  bool is_callable() const override { return true; }
  absl::StatusOr<Value> Call(Workspace& workspace, const Arguments& arguments) override {
    return method_(workspace, self_, arguments);
  }
  int depth() const override { return self_.depth() + 1; }

 private:
  const Value self_;
  const Method method_;
};

// A method that Python has and this interpreter does not.
class MissingMethod : public Object {
 public:
  explicit MissingMethod(std::string name) : name_(std::move(name)) {}
  std::string_view type_name() const override { return "method"; }
  bool is_callable() const override { return true; }
  absl::StatusOr<Value> Call(Workspace&, const Arguments&) override {
    return Unsupported({"the method ", name_, "()"});
  }

 private:
  const std::string name_;
};

Value Unsafe(const Value& value, std::string_view name) {
  return Value::Missing({"access to attribute '", name, "' of '", value.TypeName(),
                         "' object is unsafe: templates change nothing"});
}

}  // namespace

absl::StatusOr<std::optional<Value>> FindMethod(const Value& value, std::string_view name) {
  Method method = nullptr;
  if (value.AsText() != nullptr) {
    method = FindStringMethod(name);
    if (method == nullptr && IsOtherStringMethod(name)) {
      return Value(
          std::shared_ptr<Object>(std::make_shared<MissingMethod>(Concat({"str.", name}))));
    }
  } else if (value.AsDict() != nullptr) {
    if (Has(kDictMutators, name)) return Unsafe(value, name);
    method = Find(kDictMethods, name);
  } else if (const Sequence* const sequence = value.AsSequence()) {
    if (sequence->kind == Sequence::Kind::kList) {
      if (Has(kListMutators, name)) return Unsafe(value, name);
      method = Find(kListMethods, name);
    } else if (sequence->kind == Sequence::Kind::kTuple ||
               sequence->kind == Sequence::Kind::kRange) {
      method = Find(kTupleMethods, name);
    }
  }
  if (method == nullptr) return std::nullopt;
  return Value(std::shared_ptr<Object>(std::make_shared<BoundMethod>(value, method)));
}

}  // namespace retroinfer::jinja
