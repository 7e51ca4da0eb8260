// Cuts a template into tokens.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "text/jinja/token.h"

namespace retroinfer::jinja {

// With Jinja's settings trim_blocks and lstrip_blocks, as transformers has them: the line break
// behind a block is dropped, and so is the white space before one that begins a line. One line
// break at the end of the template is dropped.
//
// Returns: INVALID_ARGUMENT "line N: ..." for what is no template.
absl::StatusOr<std::vector<Token>> Tokenize(std::string_view source);

// `status` with "line N: " before its message.
absl::Status AtLine(int line, const absl::Status& status);

}  // namespace retroinfer::jinja
