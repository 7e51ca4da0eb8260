#include "kv_store_service/server/context_import.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"

namespace retroinfer::kvstore {

absl::StatusOr<ContextImport> ContextImport::Begin(Contexts* contexts) {
  ASSIGN_OR_RETURN(const std::string folder, contexts->FolderForFiles());
  common::UniqueFd file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file.valid()) {
    return common::ErrnoStatus(errno, absl::StrCat("making a file for the import in ", folder));
  }
  return ContextImport(contexts, std::move(file));
}

absl::Status ContextImport::Append(std::string_view bytes) {
  if (!header_checked_) {
    beginning_.append(bytes);
    ASSIGN_OR_RETURN(const auto header, ParseContextFileHeader(beginning_));
    if (header.has_value()) {
      RETURN_IF_ERROR(contexts_->CheckModel(*header));
      header_checked_ = true;
      beginning_.clear();
    }
  }
  while (!bytes.empty()) {
    const ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return common::ErrnoStatus(errno, "receiving a context file");
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

absl::StatusOr<ImportedContext> ContextImport::Finish(ContextToSave context, bool replace) {
  ASSIGN_OR_RETURN(const ContextFileReader file, ContextFileReader::Open(file_.get()));
  return contexts_->Import(file, std::move(context), replace);
}

}  // namespace retroinfer::kvstore
