#include "kv_store_service/contexts/context_import.h"

#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status/errno_status.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"

namespace retroinfer::kvstore {
namespace {

// Room is taken in steps, each a look at the disk.
constexpr uint64_t kStepBytes = 16u << 20;

absl::Status CacheFull(std::string_view message) {
  return common::WithReason(
      absl::FailedPreconditionError(absl::string_view(message.data(), message.size())),
      "CACHE_FULL");
}

}  // namespace

absl::StatusOr<ContextImport> ContextImport::Begin(Contexts* contexts, const Hash256& tenant) {
  ASSIGN_OR_RETURN(DurableTier* const tier, contexts->RequireTier());
  const std::string folder = tier->folder().empty() ? "/tmp" : tier->folder();
  common::UniqueFd file(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!file.valid()) {
    return common::ErrnoStatus(errno, absl::StrCat("making a file for the import in ", folder));
  }
  return ContextImport(contexts, tier, tenant, std::move(file));
}

ContextImport::ContextImport(ContextImport&& other) noexcept
    : contexts_(other.contexts_),
      tier_(other.tier_),
      tenant_(other.tenant_),
      file_(std::move(other.file_)),
      beginning_(std::move(other.beginning_)),
      bytes_max_(other.bytes_max_),
      received_(other.received_),
      held_(std::exchange(other.held_, 0)),
      header_checked_(other.header_checked_) {}

ContextImport::~ContextImport() {
  file_.Reset();
  tier_->budget().Drop(held_, &held_);
}

absl::Status ContextImport::ReadHeader(std::string_view bytes) {
  beginning_.append(bytes.substr(0, kContextHeaderBytesMax - beginning_.size()));
  ASSIGN_OR_RETURN(const auto header, ParseContextFileHeader(beginning_));
  if (!header.has_value()) return absl::OkStatus();
  RETURN_IF_ERROR(contexts_->CheckModel(*header));
  const ContextFileBytes size = SizeOf(*header);
  const uint64_t cap = tier_->budget().limits().cap_bytes;
  if (cap > 0 && size.least > cap) {
    return CacheFull(absl::StrCat("the file must have at least ", size.least,
                                  " bytes, the cache may have ", cap,
                                  " (--cache-bytes): raise the limit to import it"));
  }
  header_checked_ = true;
  bytes_max_ = size.most;
  beginning_ = {};
  return absl::OkStatus();
}

absl::Status ContextImport::MakeRoomFor(uint64_t bytes) {
  if (received_ + bytes <= held_) return absl::OkStatus();
  const uint64_t step =
      std::max(received_ + bytes - held_, std::min(kStepBytes, bytes_max_ - held_));
  struct statvfs info {};
  if (::fstatvfs(file_.get(), &info) != 0) return common::ErrnoStatus(errno, "looking at the disk");
  const uint64_t free_bytes = static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  // What was counted in earlier steps and has not come yet still looks free to the file system.
  if (free_bytes < step + (held_ - received_) + tier_->reserve_bytes()) {
    return CacheFull(absl::StrCat("there is no room for the file: ", free_bytes,
                                  " bytes of the disk are free, ", tier_->reserve_bytes(),
                                  " of them are kept in reserve"));
  }
  const absl::Status room = tier_->budget().Hold(step, tenant_, absl::Now(), &held_);
  return absl::IsResourceExhausted(room) ? CacheFull({room.message().data(), room.message().size()})
                                         : room;
}

absl::Status ContextImport::Append(std::string_view bytes) {
  if (!header_checked_) RETURN_IF_ERROR(ReadHeader(bytes));
  if (bytes.size() > bytes_max_ - received_) {
    return common::WithReason(
        absl::InvalidArgumentError(absl::StrCat("the file goes on behind the ", bytes_max_,
                                                " bytes that its header allows: it is damaged")),
        kBadFileReason);
  }
  RETURN_IF_ERROR(MakeRoomFor(bytes.size()));
  received_ += bytes.size();
  while (!bytes.empty()) {
    const ssize_t count = ::write(file_.get(), bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return common::ErrnoStatus(errno, "receiving a context file");
    bytes.remove_prefix(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

void ContextImport::Forget(const ContextFileReader::Segment& segment) {
  // Where holes cannot be made the whole file counts to the end.
  if (::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(segment.offset),
                  static_cast<off_t>(segment.image_bytes)) != 0) {
    return;
  }
  tier_->budget().Drop(std::min(held_, segment.image_bytes), &held_);
}

absl::StatusOr<ImportedContext> ContextImport::Finish(ContextToSave context) {
  ASSIGN_OR_RETURN(const ContextFileReader file, ContextFileReader::Open(file_.get()));
  return contexts_->Import(file, std::move(context),
                           [&](size_t index) { Forget(file.segments()[index]); });
}

}  // namespace retroinfer::kvstore
