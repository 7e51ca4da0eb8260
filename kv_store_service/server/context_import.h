// A context file on its way in.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/shm/unique_fd.h"
#include "kv_store_service/server/contexts.h"

namespace retroinfer::kvstore {

// Collects the bytes in a file without a name in the cache's folder, and looks at its header as
// soon as that is there: a file of another model is refused before the rest comes.
//
// Threads: one.
class ContextImport {
 public:
  // REQUIRES: `contexts` outlives this object.
  static absl::StatusOr<ContextImport> Begin(Contexts* contexts);

  absl::Status Append(std::string_view bytes);
  // Checks the whole file and saves the context, as Contexts::Import().
  absl::StatusOr<ImportedContext> Finish(ContextToSave context, bool replace);

 private:
  ContextImport(Contexts* contexts, common::UniqueFd file)
      : contexts_(contexts), file_(std::move(file)) {}

  Contexts* contexts_;
  common::UniqueFd file_;
  std::string beginning_;  // until the header is complete
  bool header_checked_ = false;
};

}  // namespace retroinfer::kvstore
