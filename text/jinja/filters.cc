#include "text/jinja/filters.h"

#include "text/jinja/list_filters.h"
#include "text/jinja/text_filters.h"

namespace retroinfer::jinja {

Filter FindFilter(std::string_view name) {
  const absl::string_view key(name.data(), name.size());
  if (const auto found = TextFilters().find(key); found != TextFilters().end()) {
    return found->second;
  }
  if (const auto found = ListFilters().find(key); found != ListFilters().end()) {
    return found->second;
  }
  return nullptr;
}

}  // namespace retroinfer::jinja
