// The first look at a model folder.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace retroinfer {

// Checks that `path` is a folder with a config.json. Where it is something else that people give
// instead, the message says what to do: the name of a model on the Hugging Face hub (and where a
// downloaded copy of it lies), a single file, a folder of the hub's cache or of another format, an
// adapter, a download that is not complete.
//
// Returns: NOT_FOUND if there is no such folder, INVALID_ARGUMENT if it is no model folder; errors
//          of the system.
absl::Status RequireModelFolder(const std::string& path);

}  // namespace retroinfer
