#include "common/shm/worker_mark.h"

#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/files/regular_file.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"

namespace retroinfer::common {
namespace {

std::string PathIn(const std::string& folder) { return absl::StrCat(folder, "/kv_store.worker"); }

// Of the whole file. Locks of open file descriptions belong to no process id.
struct flock Lock(int type) {
  struct flock lock {};
  lock.l_type = static_cast<decltype(lock.l_type)>(type);
  lock.l_whence = SEEK_SET;
  return lock;
}

}  // namespace

absl::Status WorkerMark::Make(const std::string& folder) {
  return OpenRegularFile(PathIn(folder), O_RDONLY | O_CREAT).status();
}

absl::StatusOr<WorkerMark> WorkerMark::Hold(const std::string& folder) {
  ASSIGN_OR_RETURN(UniqueFd file, OpenRegularFile(PathIn(folder), O_RDONLY));
  struct flock lock = Lock(F_RDLCK);
  if (::fcntl(file.get(), F_OFD_SETLK, &lock) != 0) {
    return ErrnoStatus(errno, absl::StrCat("locking ", PathIn(folder)));
  }
  return WorkerMark(std::move(file));
}

std::optional<bool> WorkerMark::IsHeld(const std::string& folder) {
  const absl::StatusOr<UniqueFd> file = OpenRegularFile(PathIn(folder), O_RDWR);
  if (!file.ok()) return std::nullopt;
  struct flock lock = Lock(F_WRLCK);
  if (::fcntl(file->get(), F_OFD_GETLK, &lock) != 0) return std::nullopt;
  return lock.l_type != F_UNLCK;
}

}  // namespace retroinfer::common
