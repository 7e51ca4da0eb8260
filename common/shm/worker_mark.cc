#include "common/shm/worker_mark.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/files/regular_file.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"

namespace retroinfer::common {
namespace {

std::string PathIn(const std::string& folder) { return absl::StrCat(folder, "/kv_store.worker"); }

// Of `length` bytes from `begin`, 0: of all. Locks of open file descriptions belong to no process
// id.
struct flock Lock(int type, uint64_t begin, uint64_t length) {
  struct flock lock {};
  lock.l_type = static_cast<decltype(lock.l_type)>(type);
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(begin);
  lock.l_len = static_cast<off_t>(length);
  return lock;
}

std::optional<bool> IsLocked(const std::string& folder, uint64_t begin, uint64_t length) {
  const absl::StatusOr<UniqueFd> file = OpenRegularFile(PathIn(folder), O_RDWR);
  if (!file.ok()) return std::nullopt;
  struct flock lock = Lock(F_WRLCK, begin, length);
  if (::fcntl(file->get(), F_OFD_GETLK, &lock) != 0) return std::nullopt;
  return lock.l_type != F_UNLCK;
}

}  // namespace

absl::Status WorkerMark::Make(const std::string& folder) {
  return OpenRegularFile(PathIn(folder), O_RDONLY | O_CREAT).status();
}

uint64_t WorkerMark::PlaceOf(std::string_view attach_token) {
  uint64_t place = 0;
  std::memcpy(&place, attach_token.data(), std::min(attach_token.size(), sizeof(place)));
  return place >> 2;  // offsets of files are signed, and a lock ends behind its byte
}

absl::StatusOr<WorkerMark> WorkerMark::Hold(const std::string& folder, uint64_t place) {
  ASSIGN_OR_RETURN(UniqueFd file, OpenRegularFile(PathIn(folder), O_RDONLY));
  struct flock lock = Lock(F_RDLCK, place, 1);
  if (::fcntl(file.get(), F_OFD_SETLK, &lock) != 0) {
    return ErrnoStatus(errno, absl::StrCat("locking ", PathIn(folder)));
  }
  return WorkerMark(std::move(file));
}

std::optional<bool> WorkerMark::IsHeld(const std::string& folder) { return IsLocked(folder, 0, 0); }

std::optional<bool> WorkerMark::IsHeld(const std::string& folder, uint64_t place) {
  return IsLocked(folder, place, 1);
}

}  // namespace retroinfer::common
