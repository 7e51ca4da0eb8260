// The folder of the durable segment store.
//
//   LOCK      flock()ed by the process that uses the folder, whose id is in it
//   FORMAT    the version of what is stored, with a checksum
//   COUNTS    what the database must at least have (row_witness.h)
//   CLEAN     there while nobody uses the folder, if the last user closed the database properly
//   db/       the database
//   damaged/  an earlier database that could not be used any more
//
// Whatever else lies under one of these names, or in the database (links, FIFOs, sockets, devices,
// files of two names), is neither followed nor opened nor changed: the folder is refused.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/shm/unique_fd.h"

namespace retroinfer::kvstore {

// 1: exact segments. 2: blocks and generated KV as well, of which earlier programs would take the
// rows for damaged ones; a folder of version 1 becomes one of version 2 when it is opened.
inline constexpr uint32_t kStorageFormatVersion = 2;

// Returns the version that the bytes of an intact FORMAT file name, else 0.
uint32_t ParseFormatVersion(const std::string& text);

// Threads: const methods on any thread; the others one at a time.
// Owns:    the lock, until it is destroyed.
class StorageFolder {
 public:
  // Makes the folder if it is missing, takes its lock, and makes its mode 0700.
  //
  // Returns: FAILED_PRECONDITION in use by another process, of a newer format, or something in it
  //          is no regular file; PERMISSION_DENIED not writable, or owned by another user;
  //          RESOURCE_EXHAUSTED without room for what opening a database writes, which must not be
  //          tried then: RocksDB ends the process.
  static absl::StatusOr<std::unique_ptr<StorageFolder>> Open(const std::string& path);

  std::string database_path() const { return path_ + "/db"; }
  std::string witness_path() const { return path_ + "/COUNTS"; }
  std::string damaged_path() const { return path_ + "/damaged"; }

  // The FORMAT file was damaged and has been written anew.
  bool format_was_damaged() const { return format_was_damaged_; }

  // Returns whether the last user called LeaveCleanMark(), or there was none, and takes the mark
  // away. A process that dies leaves none.
  bool TakeCleanMark();
  void LeaveCleanMark();

  // Whether files of the folder can be read past the page cache (O_DIRECT).
  bool SupportsDirectReads() const;

  // Moves the database to damaged_path(); what was there before is deleted.
  absl::Status SetDatabaseAside();

  bool HasDamaged() const;
  absl::Status RemoveDamaged();

  // Returns RESOURCE_EXHAUSTED, with the numbers, unless `bytes` can be written so that
  // `reserve_bytes` are still free on the disk.
  absl::Status CheckFreeSpace(uint64_t bytes, uint64_t reserve_bytes) const;

  // Returns the bytes that the folder takes on the disk: allocated blocks, not lengths.
  uint64_t PhysicalBytes() const;

 private:
  explicit StorageFolder(std::string path) : path_(std::move(path)) {}
  absl::Status Prepare();
  absl::Status Lock();
  absl::Status CheckTypes() const;
  absl::Status CheckFormat();
  absl::Status WriteFormat();
  absl::Status CheckRoom() const;

  const std::string path_;
  common::UniqueFd lock_;
  bool format_was_damaged_ = false;
};

}  // namespace retroinfer::kvstore
