#include "kv_store_service/persistence/storage_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <span>
#include <string_view>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/files/regular_file.h"
#include "common/hash/crc32c.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"

namespace retroinfer::kvstore {
namespace {

constexpr size_t kLockBytesMax = 32;
constexpr size_t kFormatBytesMax = 256;
// What an empty log, a manifest and the options of a database take, several times over.
constexpr uint64_t kRoomToOpen = 1u << 20;
constexpr char kAdvice[] = "; choose another folder for durable contexts, or switch them off";

absl::Status FolderError(const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(status.message(), kAdvice));
}

absl::Status FolderError(int error_number, const std::string& what) {
  return FolderError(common::ErrnoStatus(error_number, what));
}

std::string FormatText(uint32_t version) {
  const std::string text = absl::StrFormat("retroinfer durable segments\nversion %u\n", version);
  return absl::StrFormat("%scrc32c %08x\n", text,
                         common::Crc32c(std::as_bytes(std::span(text.data(), text.size()))));
}

absl::Status RequireRegularOrNothing(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) != 0 || S_ISREG(info.st_mode)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(path, " is ", common::FileTypeName(info.st_mode),
                   ", needs a regular file; move it away", kAdvice));
}

uint64_t AllocatedBytes(const std::filesystem::path& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0 ? static_cast<uint64_t>(info.st_blocks) * 512 : 0;
}

}  // namespace

uint32_t ParseFormatVersion(const std::string& text) {
  static constexpr char kWord[] = "\nversion ";
  const size_t word = text.find(kWord);
  if (word == std::string::npos) return 0;
  const size_t begin = word + sizeof(kWord) - 1;
  const size_t end = text.find('\n', begin);
  uint32_t version = 0;
  if (end == std::string::npos || !absl::SimpleAtoi(text.substr(begin, end - begin), &version)) {
    return 0;
  }
  return text == FormatText(version) ? version : 0;
}

absl::StatusOr<std::unique_ptr<StorageFolder>> StorageFolder::Open(const std::string& path) {
  std::unique_ptr<StorageFolder> folder(new StorageFolder(path));
  RETURN_IF_ERROR(folder->Prepare());
  RETURN_IF_ERROR(folder->Lock());
  RETURN_IF_ERROR(folder->CheckTypes());
  RETURN_IF_ERROR(folder->CheckFormat());
  RETURN_IF_ERROR(folder->CheckRoom());
  return folder;
}

absl::Status StorageFolder::Prepare() {
  const std::filesystem::path folder(path_);
  std::error_code error;
  if (folder.has_parent_path()) std::filesystem::create_directories(folder.parent_path(), error);
  if (mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) {
    return FolderError(errno, absl::StrCat("making the folder ", path_));
  }
  struct stat info;
  if (stat(path_.c_str(), &info) != 0) return FolderError(errno, absl::StrCat("opening ", path_));
  if (!S_ISDIR(info.st_mode)) return FolderError(ENOTDIR, absl::StrCat("opening ", path_));
  if (info.st_uid != geteuid()) {
    return absl::PermissionDeniedError(
        absl::StrFormat("the folder %s belongs to user %u, this process runs as %u%s", path_,
                        info.st_uid, geteuid(), kAdvice));
  }
  if ((info.st_mode & 077) != 0 && chmod(path_.c_str(), 0700) != 0) {
    return FolderError(errno, absl::StrCat("making the folder ", path_, " private"));
  }
  return absl::OkStatus();
}

absl::Status StorageFolder::Lock() {
  const std::string path = path_ + "/LOCK";
  auto lock = common::OpenRegularFile(path, O_RDWR | O_CREAT);
  if (absl::IsFailedPrecondition(lock.status())) return lock.status();
  if (!lock.ok()) {
    return FolderError(
        absl::Status(lock.status().code(),
                     absl::StrCat("writing in the folder ", path_, ": ", lock.status().message())));
  }
  lock_ = *std::move(lock);
  if (flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return FolderError(errno, absl::StrCat("locking ", path));
    std::string owner = common::ReadRegularFile(path, kLockBytesMax).value_or("");
    while (!owner.empty() && owner.back() == '\n') owner.pop_back();
    return absl::FailedPreconditionError(absl::StrCat(
        "the folder ", path_, " is in use by process ", owner.empty() ? "(unknown)" : owner,
        ": stop it, or give each kv_store_service a folder of its own"));
  }
  const std::string pid = absl::StrCat(getpid(), "\n");
  if (ftruncate(lock_.get(), 0) != 0 ||
      pwrite(lock_.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size())) {
    return FolderError(errno, absl::StrCat("writing ", path));
  }
  return absl::OkStatus();
}

absl::Status StorageFolder::CheckTypes() const {
  for (const char* name : {"/FORMAT", "/FORMAT.next", "/COUNTS", "/CLEAN"}) {
    RETURN_IF_ERROR(RequireRegularOrNothing(path_ + name));
  }
  if (!common::SomethingIsAt(database_path())) return absl::OkStatus();
  RETURN_IF_ERROR(common::RequireFolder(database_path()));
  // The database opens what it finds there by its name, and waits for a FIFO.
  std::error_code error;
  std::filesystem::directory_iterator entry(database_path(), error), end;
  for (; !error && entry != end; entry.increment(error)) {
    RETURN_IF_ERROR(RequireRegularOrNothing(entry->path().string()));
  }
  if (error) return FolderError(error.value(), absl::StrCat("reading ", database_path()));
  return absl::OkStatus();
}

absl::Status StorageFolder::CheckFormat() {
  const std::string path = path_ + "/FORMAT";
  const auto text = common::ReadRegularFile(path, kFormatBytesMax);
  if (absl::IsNotFound(text.status())) return WriteFormat();
  const bool too_long = absl::IsResourceExhausted(text.status());
  if (!text.ok() && !too_long) return FolderError(text.status());
  const uint32_t version = too_long ? 0 : ParseFormatVersion(*text);
  if (version > kStorageFormatVersion) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the folder %s has format %u, this version knows formats up to %u: use a newer version, "
        "or another folder",
        path_, version, kStorageFormatVersion));
  }
  if (version == kStorageFormatVersion) return absl::OkStatus();
  if (version != 0) return WriteFormat();  // what is there is right in the new version, too
  format_was_damaged_ = true;              // every row has its own version and checksum
  return WriteFormat();
}

absl::Status StorageFolder::WriteFormat() {
  const absl::Status status =
      common::ReplaceRegularFile(path_ + "/FORMAT", FormatText(kStorageFormatVersion));
  return status.ok() ? status : FolderError(status);
}

absl::Status StorageFolder::CheckRoom() const {
  uint64_t log_bytes = 0;
  std::error_code error;
  std::filesystem::directory_iterator entry(database_path(), error), end;
  for (; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == ".log") log_bytes += AllocatedBytes(entry->path());
  }
  const absl::Status room = common::RequireRoom(path_, kRoomToOpen + 2 * log_bytes);
  if (room.ok()) return room;
  return absl::Status(room.code(), absl::StrCat("no room to open the database: ", room.message(),
                                                "; free some, or choose another folder"));
}

bool StorageFolder::TakeCleanMark() {
  const bool is_new = !common::SomethingIsAt(database_path());
  return unlink((path_ + "/CLEAN").c_str()) == 0 || is_new;
}

void StorageFolder::LeaveCleanMark() {
  // Without it the next start looks more closely.
  common::OpenRegularFile(path_ + "/CLEAN", O_WRONLY | O_CREAT).status().IgnoreError();
}

bool StorageFolder::SupportsDirectReads() const {
  return common::OpenRegularFile(path_ + "/FORMAT", O_RDONLY | O_DIRECT).ok();
}

absl::Status StorageFolder::SetDatabaseAside() {
  RETURN_IF_ERROR(RemoveDamaged());
  if (rename(database_path().c_str(), damaged_path().c_str()) != 0) {
    return FolderError(errno, absl::StrCat("moving ", database_path(), " aside"));
  }
  return absl::OkStatus();
}

bool StorageFolder::HasDamaged() const { return common::SomethingIsAt(damaged_path()); }

absl::Status StorageFolder::RemoveDamaged() {
  std::error_code error;
  std::filesystem::remove_all(damaged_path(), error);
  if (error) return FolderError(error.value(), absl::StrCat("removing ", damaged_path()));
  return absl::OkStatus();
}

absl::Status StorageFolder::CheckFreeSpace(uint64_t bytes, uint64_t reserve_bytes) const {
  struct statvfs info;
  if (statvfs(path_.c_str(), &info) != 0) return FolderError(errno, "looking at " + path_);
  const uint64_t free_bytes = static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
  if (free_bytes >= bytes + reserve_bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrCat("durable segments: ", bytes, " bytes do not fit on the disk of ", path_, ": ",
                   free_bytes, " are free, ", reserve_bytes, " of them are kept in reserve"));
}

uint64_t StorageFolder::PhysicalBytes() const {
  uint64_t bytes = AllocatedBytes(path_);
  std::error_code error;  // files come and go while we look
  std::filesystem::recursive_directory_iterator entry(path_, error), end;
  while (!error && entry != end) {
    bytes += AllocatedBytes(entry->path());
    entry.increment(error);
  }
  return bytes;
}

}  // namespace retroinfer::kvstore
