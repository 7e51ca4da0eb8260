#include "text/jinja/call.h"

#include <algorithm>

#include "text/jinja/errors.h"
#include "text/jinja/operators.h"

namespace retroinfer::jinja {

absl::StatusOr<BoundArguments> BoundArguments::Bind(
    std::string_view function, const Arguments& arguments,
    std::initializer_list<std::string_view> parameters, size_t num_required) {
  BoundArguments bound(function, parameters);
  if (arguments.positional.size() > parameters.size()) {
    return Error({function, "() takes ", std::to_string(parameters.size()), " arguments, not ",
                  std::to_string(arguments.positional.size())});
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    bound.values_[i] = &arguments.positional[i];
  }
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(parameters.begin(), parameters.end(), name);
    if (found == parameters.end()) {
      return Error({function, "() has no argument '", name, "'"});
    }
    const Value*& place = bound.values_[static_cast<size_t>(found - parameters.begin())];
    if (place != nullptr) return Error({function, "() got the argument '", name, "' twice"});
    place = &value;
  }
  for (size_t i = 0; i < num_required; ++i) {
    if (bound.values_[i] == nullptr) {
      return Error({function, "() needs the argument '", bound.parameters_[i], "'"});
    }
  }
  return bound;
}

absl::Status BoundArguments::TypeError(size_t index, std::string_view wanted) const {
  if (values_[index]->is_undefined()) return values_[index]->UndefinedError();
  return Error({function_, "(): '", parameters_[index], "' must be ", wanted, ", not '",
                values_[index]->TypeName(), "'"});
}

absl::StatusOr<Text> BoundArguments::TextOr(size_t index, std::string_view fallback) const {
  if (values_[index] == nullptr || values_[index]->is_none()) return Text(fallback, false);
  if (values_[index]->AsText() == nullptr) return TypeError(index, "a string");
  return *values_[index]->AsText();
}

absl::StatusOr<Int> BoundArguments::IntOr(size_t index, Int fallback) const {
  if (values_[index] == nullptr || values_[index]->is_none()) return fallback;
  if (!values_[index]->AsInt().has_value()) return TypeError(index, "an integer");
  return *values_[index]->AsInt();
}

bool BoundArguments::TruthOr(size_t index, bool fallback) const {
  return values_[index] == nullptr ? fallback : IsTrue(*values_[index]);
}

}  // namespace retroinfer::jinja
