// A model folder without tokenizer.json.
#pragma once

#include <filesystem>

#include "absl/status/status.h"

namespace retroinfer {

// Returns NOT_FOUND that says that `folder` has no tokenizer.json, which files of other tokenizers
// it has instead, and how one is had.
absl::Status MissingTokenizer(const std::filesystem::path& folder);

}  // namespace retroinfer
