#include "kv_store_service/tier/partial_image.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer::kvstore {
namespace {

// On a disk of 1.25 GB/s that takes 8 us for a read besides, so many bytes cost what a read does
// (docs/benchmarks/reuse.md); faster disks have more of both.
constexpr uint32_t kGapBytes = 10u << 10;

}  // namespace

PartialImage::PartialImage(std::unique_ptr<ImageParts> parts, std::span<std::byte> image)
    : parts_(std::move(parts)), image_(image), states_(parts_->num_parts(), State::kAbsent) {}

absl::Status PartialImage::CheckRuns(std::span<const PartRun> runs) const {
  for (const PartRun& run : runs) {
    if (uint64_t{run.first} + run.count <= num_parts()) continue;
    return absl::InvalidArgumentError(absl::StrCat("parts ", run.first, " to ",
                                                   uint64_t{run.first} + run.count,
                                                   " of an image that has ", num_parts()));
  }
  return absl::OkStatus();
}

bool PartialImage::ClaimGap(const PartRun& last, uint32_t part) {
  const uint32_t end = last.first + last.count;
  if (part < end || part - end > kGapBytes / part_bytes()) return false;
  const auto gap = std::span(states_).subspan(end, part - end);
  if (std::ranges::any_of(gap, [](State state) { return state != State::kAbsent; })) return false;
  std::ranges::fill(gap, State::kReading);
  return true;
}

std::vector<PartRun> PartialImage::Claim(std::span<const PartRun> runs) {
  std::vector<PartRun> claimed;
  for (const PartRun& run : runs) {
    for (uint32_t part = run.first; part < run.first + run.count; ++part) {
      if (states_[part] != State::kAbsent) continue;
      states_[part] = State::kReading;
      if (!claimed.empty() && ClaimGap(claimed.back(), part)) {
        claimed.back().count = part + 1 - claimed.back().first;
      } else {
        claimed.push_back({part, 1});
      }
    }
  }
  return claimed;
}

uint64_t PartialImage::BytesOf(std::span<const PartRun> runs) const {
  uint64_t bytes = 0;
  for (const PartRun& run : runs) {
    const uint64_t begin = uint64_t{run.first} * part_bytes();
    bytes += std::min<uint64_t>(uint64_t{run.count} * part_bytes(), image_.size() - begin);
  }
  return bytes;
}

absl::Status PartialImage::ReadClaimed(std::span<const PartRun> claimed, uint64_t* bytes_read) {
  if (claimed.empty()) return absl::OkStatus();
  const absl::Status status = parts_->Read(claimed, image_);
  if (status.ok()) *bytes_read += BytesOf(claimed);
  absl::MutexLock lock(&mutex_);
  for (const PartRun& run : claimed) {
    std::fill_n(states_.begin() + run.first, run.count,
                status.ok() ? State::kThere : State::kAbsent);
  }
  while (there_until_ < states_.size() && states_[there_until_] == State::kThere) ++there_until_;
  ++num_ended_;
  if (!status.ok() && !std::exchange(has_failed_, true)) untold_failure_ = status;
  if (error_.ok()) error_ = status;
  return status;
}

bool PartialImage::AnyReading(std::span<const PartRun> runs) const {
  for (const PartRun& run : runs) {
    for (uint32_t i = 0; i < run.count; ++i) {
      if (states_[run.first + i] == State::kReading) return true;
    }
  }
  return false;
}

bool PartialImage::AllThere(std::span<const PartRun> runs) const {
  for (const PartRun& run : runs) {
    for (uint32_t i = 0; i < run.count; ++i) {
      if (states_[run.first + i] != State::kThere) return false;
    }
  }
  return true;
}

absl::Status PartialImage::Fetch(std::span<const PartRun> runs, uint64_t* bytes_read) {
  RETURN_IF_ERROR(CheckRuns(runs));
  std::vector<PartRun> claimed;
  {
    absl::MutexLock lock(&mutex_);
    if (AllThere(runs)) return absl::OkStatus();
    RETURN_IF_ERROR(error_);
    claimed = Claim(runs);
    num_begun_ += claimed.empty() ? 0 : 1;
  }
  RETURN_IF_ERROR(ReadClaimed(claimed, bytes_read));
  absl::MutexLock lock(&mutex_);
  while (AnyReading(runs)) {
    const uint64_t before = num_ended_;
    const auto has_ended = [this, before]()
                               ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return num_ended_ != before; };
    mutex_.Await(absl::Condition(&has_ended));
  }
  return AllThere(runs) ? absl::OkStatus() : error_;
}

absl::StatusOr<bool> PartialImage::FetchNext(uint32_t max_parts, uint64_t* bytes_read) {
  std::vector<PartRun> wanted;
  uint32_t end;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(error_);
    const uint32_t begin = there_until_;
    end = std::min(num_parts(), begin + max_parts);
    wanted.push_back({begin, end - begin});
  }
  RETURN_IF_ERROR(Fetch(wanted, bytes_read));
  return end == num_parts();
}

uint32_t PartialImage::there_until() const {
  absl::MutexLock lock(&mutex_);
  return there_until_;
}

bool PartialImage::has_failed() const {
  absl::MutexLock lock(&mutex_);
  return has_failed_;
}

absl::Status PartialImage::TakeFailure() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(untold_failure_, absl::OkStatus());
}

void PartialImage::Close(absl::Status why) {
  absl::MutexLock lock(&mutex_);
  if (error_.ok()) error_ = std::move(why);
  mutex_.Await(absl::Condition(this, &PartialImage::IsQuiet));
}

}  // namespace retroinfer::kvstore
