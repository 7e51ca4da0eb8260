// An image that comes into its extent in parts: its index first, then what is asked for, and the
// rest behind in order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "kv_store_service/persistence/image_parts.h"

namespace retroinfer::kvstore {

// A part is read once: others who want it meanwhile wait. A part that is there was checked, and
// never changes again. After an error of a read no part comes any more.
//
// A disk takes longer for one read more than for a few KiB more: small gaps between parts that are
// wanted are read, too, and count as parts that are there.
//
// Threads: all methods on any thread.
// Owns:    the account of parts; not the bytes.
class PartialImage {
 public:
  // REQUIRES: `image` has parts->image_bytes() bytes and outlives the object.
  PartialImage(std::unique_ptr<ImageParts> parts, std::span<std::byte> image);

  uint32_t part_bytes() const { return parts_->part_bytes(); }
  uint32_t num_parts() const { return parts_->num_parts(); }
  uint64_t image_bytes() const { return parts_->image_bytes(); }
  const std::vector<int32_t>& token_ids() const { return parts_->token_ids(); }

  // Returns when the parts are there. Adds the bytes that this call read to `bytes_read`, gaps
  // included.
  //
  // Returns: INVALID_ARGUMENT if the image has no such parts; the error of the read that failed.
  absl::Status Fetch(std::span<const PartRun> runs, uint64_t* bytes_read)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Reads up to `max_parts` of those that are not there, in order, and adds their bytes. Returns
  // whether all are there now.
  absl::StatusOr<bool> FetchNext(uint32_t max_parts, uint64_t* bytes_read)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // How many parts from the first one on are there, without a gap.
  uint32_t there_until() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Whether a read of parts has failed.
  bool has_failed() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the error of the read that failed, to the first who asks; OK otherwise.
  absl::Status TakeFailure() ABSL_LOCKS_EXCLUDED(mutex_);

  // From now on parts that are not there do not come, and who wants one is told why. Returns when
  // nothing is being read any more.
  void Close(absl::Status why) ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  enum class State : uint8_t { kAbsent, kReading, kThere };

  absl::Status CheckRuns(std::span<const PartRun> runs) const;
  // Marks the absent ones of the parts as being read, and those of small gaps between them, and
  // returns them.
  std::vector<PartRun> Claim(std::span<const PartRun> runs) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Claims the parts from the end of `last` to `part`, if these are few and all absent. Returns
  // whether it did.
  bool ClaimGap(const PartRun& last, uint32_t part) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ReadClaimed(std::span<const PartRun> claimed, uint64_t* bytes_read)
      ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsQuiet() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return num_begun_ == num_ended_; }
  bool AllThere(std::span<const PartRun> runs) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AnyReading(std::span<const PartRun> runs) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint64_t BytesOf(std::span<const PartRun> runs) const;

  const std::unique_ptr<ImageParts> parts_;
  const std::span<std::byte> image_;

  mutable absl::Mutex mutex_;
  std::vector<State> states_ ABSL_GUARDED_BY(mutex_);
  uint32_t there_until_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t num_begun_ ABSL_GUARDED_BY(mutex_) = 0;  // reads
  uint64_t num_ended_ ABSL_GUARDED_BY(mutex_) = 0;  // of those
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  bool has_failed_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status untold_failure_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace retroinfer::kvstore
