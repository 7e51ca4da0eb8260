// The variable `loop`.
#pragma once

#include <memory>
#include <string_view>
#include <utility>

#include "text/jinja/workspace.h"

namespace retroinfer::jinja {

// Attributes: index, index0, revindex, revindex0, first, last, length, previtem, nextitem, and
// cycle().
class Loop : public Object {
 public:
  explicit Loop(Values items) : items_(std::move(items)) {}

  bool is_done() const { return index_ == items_.size(); }
  // REQUIRES: !is_done().
  void Advance() { ++index_; }
  const Value& item() const { return items_[index_]; }

  std::string_view type_name() const override { return "LoopContext"; }
  absl::StatusOr<std::optional<Value>> Attribute(Workspace& workspace,
                                                 std::string_view name) override;
  int depth() const override;

 private:
  const Values items_;
  size_t index_ = 0;
};

}  // namespace retroinfer::jinja
