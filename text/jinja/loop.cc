#include "text/jinja/loop.h"

#include <algorithm>

#include "text/jinja/errors.h"

namespace retroinfer::jinja {
namespace {

// loop.cycle(a, b, ...): the argument whose turn it is.
class Cycle : public Object {
 public:
  explicit Cycle(size_t index) : index_(index) {}
  std::string_view type_name() const override { return "method"; }
  bool is_callable() const override { return true; }
  absl::StatusOr<Value> Call(Workspace&, const Arguments& arguments) override {
    if (arguments.positional.empty()) return Error({"no items for cycling given"});
    return arguments.positional[index_ % arguments.positional.size()];
  }

 private:
  const size_t index_;
};

}  // namespace

absl::StatusOr<std::optional<Value>> Loop::Attribute(Workspace&, std::string_view name) {
  const auto index = static_cast<Int>(index_);
  const auto size = static_cast<Int>(items_.size());
  if (name == "index") return Value(index + 1);
  if (name == "index0") return Value(index);
  if (name == "revindex") return Value(size - index);
  if (name == "revindex0") return Value(size - index - 1);
  if (name == "first") return Value(index == 0);
  if (name == "last") return Value(index + 1 == size);
  if (name == "length") return Value(size);
  if (name == "previtem") {
    return index > 0 ? items_[index_ - 1] : Value::Missing({"there is no previous item"});
  }
  if (name == "nextitem") {
    return index + 1 < size ? items_[index_ + 1] : Value::Missing({"there is no next item"});
  }
  if (name == "cycle") return Value(std::shared_ptr<Object>(std::make_shared<Cycle>(index_)));
  if (name == "changed" || name == "depth" || name == "depth0") {
    return Unsupported({"loop.", name});
  }
  return std::nullopt;
}

int Loop::depth() const {
  int depth = 0;
  for (const Value& item : items_) depth = std::max(depth, item.depth());
  return depth + 1;
}

}  // namespace retroinfer::jinja
