// The variables that a part of a template sees.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja/value.h"

namespace retroinfer::jinja {

// Loops, macros and some blocks have scopes of their own; what is set in one is gone behind it.
// Names point into the template or to the caller's variables.
class Scope {
 public:
  explicit Scope(std::shared_ptr<const Scope> parent) : parent_(std::move(parent)) {}

  // nullptr if neither this scope nor one around it has `name`.
  const Value* Find(std::string_view name) const {
    for (const Scope* scope = this; scope != nullptr; scope = scope->parent_.get()) {
      for (const auto& [key, value] : scope->variables_) {
        if (key == name) return &value;
      }
    }
    return nullptr;
  }

  void Set(std::string_view name, Value value) {
    for (auto& [key, old] : variables_) {
      if (key == name) {
        old = std::move(value);
        return;
      }
    }
    variables_.emplace_back(name, std::move(value));
  }

 private:
  const std::shared_ptr<const Scope> parent_;
  std::vector<std::pair<std::string_view, Value>> variables_;  // few
};

}  // namespace retroinfer::jinja
