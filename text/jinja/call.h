// Reads the arguments of a call by place or by name, as Python binds them.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "text/jinja/value.h"

namespace retroinfer::jinja {

// The arguments of one call of `function`, in the order of its parameters; those that were not
// given are nullptr.
class BoundArguments {
 public:
  // REQUIRES: `arguments` outlives this.
  // Returns:  INVALID_ARGUMENT if there are too many, one that is not known or one that is given
  //           twice; the first `num_required` must be there.
  static absl::StatusOr<BoundArguments> Bind(std::string_view function, const Arguments& arguments,
                                             std::initializer_list<std::string_view> parameters,
                                             size_t num_required = 0);

  const Value* operator[](size_t index) const { return values_[index]; }

  // Each returns INVALID_ARGUMENT if the argument has another type; `fallback` if it is not there
  // or, for TextOr and IntOr, none.
  absl::StatusOr<Text> TextOr(size_t index, std::string_view fallback) const;
  absl::StatusOr<Int> IntOr(size_t index, Int fallback) const;
  bool TruthOr(size_t index, bool fallback) const;

 private:
  BoundArguments(std::string_view function, std::initializer_list<std::string_view> parameters)
      : function_(function), parameters_(parameters), values_(parameters.size(), nullptr) {}
  absl::Status TypeError(size_t index, std::string_view wanted) const;

  std::string function_;
  std::vector<std::string_view> parameters_;
  std::vector<const Value*> values_;
};

}  // namespace retroinfer::jinja
