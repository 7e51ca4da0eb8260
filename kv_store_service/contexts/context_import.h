// Receives a context file and imports its context.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/shm/unique_fd.h"
#include "kv_store_service/contexts/contexts.h"

namespace retroinfer::kvstore {

// Collects the bytes in a file without a name in the cache's folder, and checks the header as soon
// as it is complete: a file of another model, or a file that must be larger than the limits of the
// disk allow, is refused before the rest comes. Bytes that were received count against the limits
// of the disk, as segments do, and may be no more than the header allows.
//
// Threads: one.
class ContextImport {
 public:
  // For a file of `tenant`. REQUIRES: `contexts` outlives this object.
  static absl::StatusOr<ContextImport> Begin(Contexts* contexts, const Hash256& tenant);
  ContextImport(ContextImport&& other) noexcept;
  ~ContextImport();

  // Errors as of the RPC ImportContext; the import is over after one.
  absl::Status Append(std::string_view bytes);
  // Checks the whole file and saves the context, as Contexts::Import().
  absl::StatusOr<ImportedContext> Finish(ContextToSave context);

 private:
  ContextImport(Contexts* contexts, DurableTier* tier, const Hash256& tenant, common::UniqueFd file)
      : contexts_(contexts), tier_(tier), tenant_(tenant), file_(std::move(file)) {}
  absl::Status ReadHeader(std::string_view bytes);
  // Reserves bytes of the disk's budget so that `bytes` more fit into the file.
  absl::Status MakeRoomFor(uint64_t bytes);
  // Gives back the bytes of a segment of the file that was imported.
  void Forget(const ContextFileReader::Segment& segment);

  Contexts* contexts_;
  DurableTier* tier_;
  Hash256 tenant_;
  common::UniqueFd file_;
  std::string beginning_;                        // until the header is complete
  uint64_t bytes_max_ = kContextHeaderBytesMax;  // that may come
  uint64_t received_ = 0;
  uint64_t held_ = 0;  // see DiskBudget::Hold()
  bool header_checked_ = false;
};

}  // namespace retroinfer::kvstore
