#include "text/jinja/errors.h"

namespace retroinfer::jinja {

std::string Concat(std::initializer_list<std::string_view> parts) {
  std::string text;
  for (const std::string_view part : parts) text.append(part);
  return text;
}

absl::Status Error(std::initializer_list<std::string_view> parts) {
  return absl::InvalidArgumentError(Concat(parts));
}

absl::Status Unsupported(std::initializer_list<std::string_view> parts) {
  return absl::UnimplementedError(Concat(parts));
}

absl::Status OverLimit(std::initializer_list<std::string_view> parts) {
  return absl::ResourceExhaustedError(Concat(parts));
}

}  // namespace retroinfer::jinja
