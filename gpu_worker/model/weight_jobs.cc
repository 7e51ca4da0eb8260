// Invariants of reading:
// * Threads take pieces in order. A thread waits only for jobs before the job of its piece, so the
//   first unfinished job can always be finished.
// * A job writes to bytes of the staging memory only when all earlier jobs that used any of these
//   bytes are finished.
// * `arrived` counts pieces whose copies are enqueued; the loading thread waits for their events
//   before it finishes a job.
#include "gpu_worker/model/weight_jobs.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <memory>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/host_numbers.h"

namespace retroinfer {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kStagingAhead = size_t{256} << 20;

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

size_t TotalBytes(const std::vector<WeightJob>& jobs) {
  size_t bytes = 0;
  for (const WeightJob& job : jobs) {
    for (const WeightJob::Part& part : job.parts) bytes += part.tensor.num_bytes();
  }
  return bytes;
}

size_t LargestStaging(const std::vector<WeightJob>& jobs) {
  size_t bytes = 0;
  for (const WeightJob& job : jobs) bytes = std::max(bytes, Aligned(job.staging_bytes));
  return bytes;
}

// Multiplies the bytes of `part` from `begin` on as it says.
void ScalePart(const WeightJob::Part& part, size_t begin, std::span<std::byte> bytes) {
  if (part.row_exponents.empty()) return;
  const HostTensor& tensor = part.tensor;
  const size_t element = WeightTypeBytes(tensor.type);
  const size_t rows = part.row_exponents.size();
  ScaleRows(tensor.type, bytes, begin / element, tensor.num_bytes() / element / rows,
            part.row_exponents);
}

// Copies a part as it lies in its file; or piece by piece, where its bytes become others.
absl::Status CopyFromMapping(Device& device, Stream& stream, const WeightJob::Part& part,
                             const DeviceSpan<std::byte>& target) {
  const HostTensor& tensor = part.tensor;
  const bool is_copied = tensor.coding == nullptr && part.row_exponents.empty();
  const size_t piece_bytes = is_copied ? tensor.num_bytes() : CheckpointHasher::kPieceBytes;
  if (tensor.coding != nullptr) RETURN_IF_ERROR(tensor.coding->Check());
  std::vector<std::byte> memory;
  for (size_t at = 0; at < tensor.num_bytes(); at += piece_bytes) {
    const size_t size = std::min(piece_bytes, tensor.num_bytes() - at);
    std::span<const std::byte> bytes = tensor.Bytes(at, size, memory);
    if (!part.row_exponents.empty()) {
      if (tensor.coding == nullptr) memory.assign(bytes.begin(), bytes.end());
      ScalePart(part, at, memory);
      bytes = memory;
    }
    RETURN_IF_ERROR(device.Upload(stream, bytes, target.subspan(part.at + at, size)));
    RETURN_IF_ERROR(stream.Synchronize());
  }
  return absl::OkStatus();
}

absl::Status RunFromMapping(Device& device, const std::vector<WeightJob>& jobs,
                            const LoadProgress& progress) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.CreateStream(StreamKind::kCompute));
  ASSIGN_OR_RETURN(const DeviceBuffer staging,
                   device.Allocate(LargestStaging(jobs), MemoryPurpose::kWeights));
  const size_t total = TotalBytes(jobs);
  size_t done = 0;
  for (const WeightJob& job : jobs) {
    const bool is_staged = job.target.empty();
    const DeviceSpan<std::byte> target =
        is_staged ? staging.bytes().first(job.staging_bytes) : job.target;
    for (const WeightJob::Part& part : job.parts) {
      if (!target.empty()) {
        RETURN_IF_ERROR(CopyFromMapping(device, *stream, part, target));
      }
      done += part.tensor.num_bytes();
      if (progress && part.tensor.num_bytes() != 0) progress(done, total);
    }
    if (job.finish) RETURN_IF_ERROR(job.finish(target));
  }
  return absl::OkStatus();
}

// At most CheckpointHasher::kPieceBytes of a tensor.
struct Piece {
  size_t job = 0;
  const WeightJob::Part* part = nullptr;
  size_t begin = 0;  // of the tensor
  size_t bytes = 0;
  DeviceSpan<std::byte> target;  // empty: nowhere
};

// Reads what is stored from `begin` on.
absl::Status ReadStored(const WeightJob::Part& part, size_t begin, std::span<std::byte> out) {
  const HostTensor& tensor = part.tensor;
  size_t done = 0;
  while (done < out.size()) {
    const auto offset = static_cast<off_t>(tensor.file_offset + begin + done);
    const ssize_t count = ::pread(tensor.fd, out.data() + done, out.size() - done, offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      return common::ErrnoStatus(errno, absl::StrCat("reading ", out.size() - done, " bytes at ",
                                                     offset, " for tensor \"", part.name, "\""));
    }
    if (count == 0) {
      return absl::DataLossError(absl::StrCat(
          "tensor \"", part.name, "\" needs ", out.size() - done, " more bytes at ", offset,
          " of its file, which ends there: it was changed while it was loaded. Load it again when "
          "it is complete"));
    }
    done += static_cast<size_t>(count);
  }
  return absl::OkStatus();
}

// `memory` is for what is coded.
absl::Status ReadPiece(const Piece& piece, std::span<std::byte> out,
                       std::vector<std::byte>& memory) {
  const TensorCoding* const coding = piece.part->tensor.coding.get();
  if (coding == nullptr) return ReadStored(*piece.part, piece.begin, out);
  if (piece.begin == 0) RETURN_IF_ERROR(coding->Check());
  const TensorCoding::Extent extent = coding->StoredExtent(piece.begin, out.size());
  memory.resize(extent.size);
  RETURN_IF_ERROR(ReadStored(*piece.part, extent.begin, memory));
  coding->Decode(memory, piece.begin, out);
  return absl::OkStatus();
}

class WeightReader {
 public:
  WeightReader(Device& device, const std::vector<WeightJob>& jobs, const WeightJobOptions& options)
      : device_(device), jobs_(jobs), options_(options), progress_of_(jobs.size()) {}

  absl::Status Run();

 private:
  // Memory that a piece is read into and copied from.
  struct Slot {
    HostBuffer memory;
    std::unique_ptr<Event> copied;
  };
  // Resources of one thread, created on that thread: a thread's first use of the device must be its
  // own. The stream is destroyed before the slots, and so waits for copies from the slots.
  struct Reader {
    std::array<Slot, 2> slots;
    std::unique_ptr<Stream> stream;
    std::vector<std::byte> coded;  // what is read of tensors that are decoded
  };
  struct JobProgress {
    size_t num_pieces = 0;
    size_t wait_for = 0;  // leading jobs to be finished before this one's memory is written
    DeviceSpan<std::byte> target;
    size_t arrived = 0;
    std::vector<const Event*> copies;
  };

  void PlanStaging();
  void PlanPieces();
  absl::Status Read(Reader& reader);
  absl::Status ReadOne(const Piece& piece, Reader& reader, Slot& slot);
  absl::Status FinishJobs();
  // Returns false if reading has failed.
  bool AwaitFinished(size_t num_jobs);
  bool AwaitArrived(size_t job);
  void Fail(absl::Status status);

  Device& device_;
  const std::vector<WeightJob>& jobs_;
  const WeightJobOptions& options_;
  DeviceBuffer staging_;
  std::vector<Piece> pieces_;
  std::atomic<size_t> next_piece_ = 0;
  std::atomic<bool> failed_ = false;

  absl::Mutex mutex_;
  size_t num_finished_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
  std::vector<JobProgress> progress_of_;  // counts and copies: guarded by mutex_
};

void WeightReader::PlanStaging() {
  struct Place {
    size_t job, begin, end;
  };
  std::vector<Place> places;
  size_t cursor = 0;
  for (size_t i = 0; i < jobs_.size(); ++i) {
    JobProgress& progress = progress_of_[i];
    progress.target = jobs_[i].target;
    const size_t bytes = Aligned(jobs_[i].staging_bytes);
    if (!progress.target.empty() || bytes == 0) continue;
    if (cursor + bytes > staging_.size_bytes()) cursor = 0;
    progress.target = staging_.bytes().subspan(cursor, jobs_[i].staging_bytes);
    for (auto place = places.rbegin(); place != places.rend(); ++place) {
      if (place->begin < cursor + bytes && cursor < place->end) {
        progress.wait_for = place->job + 1;
        break;
      }
    }
    places.push_back({i, cursor, cursor + bytes});
    cursor += bytes;
  }
}

void WeightReader::PlanPieces() {
  constexpr size_t kPieceBytes = CheckpointHasher::kPieceBytes;
  for (size_t i = 0; i < jobs_.size(); ++i) {
    for (const WeightJob::Part& part : jobs_[i].parts) {
      const size_t size = part.tensor.num_bytes();
      for (size_t begin = 0; begin < size; begin += kPieceBytes) {
        Piece piece{.job = i, .part = &part, .begin = begin, .target = {}};
        piece.bytes = std::min(kPieceBytes, size - begin);
        const DeviceSpan<std::byte>& target = progress_of_[i].target;
        if (!target.empty()) piece.target = target.subspan(part.at + begin, piece.bytes);
        pieces_.push_back(piece);
        ++progress_of_[i].num_pieces;
      }
    }
  }
}

void WeightReader::Fail(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  if (status_.ok()) status_ = std::move(status);
  failed_ = true;
}

bool WeightReader::AwaitFinished(size_t num_jobs) {
  absl::MutexLock lock(&mutex_);
  const auto done = [this, num_jobs]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return num_finished_ >= num_jobs || failed_;
  };
  mutex_.Await(absl::Condition(&done));
  return !failed_;
}

bool WeightReader::AwaitArrived(size_t job) {
  absl::MutexLock lock(&mutex_);
  const JobProgress& progress = progress_of_[job];
  const auto done = [this, &progress]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return progress.arrived == progress.num_pieces || failed_;
  };
  mutex_.Await(absl::Condition(&done));
  return !failed_;
}

absl::Status WeightReader::ReadOne(const Piece& piece, Reader& reader, Slot& slot) {
  RETURN_IF_ERROR(device_.Synchronize(*slot.copied));
  const std::span<std::byte> memory = slot.memory.bytes().first(piece.bytes);
  RETURN_IF_ERROR(ReadPiece(piece, memory, reader.coded));
  if (options_.hasher != nullptr) options_.hasher->Add(piece.part->name, piece.begin, memory);
  if (!piece.target.empty()) {
    ScalePart(*piece.part, piece.begin, memory);
    if (!AwaitFinished(progress_of_[piece.job].wait_for)) return absl::OkStatus();
    RETURN_IF_ERROR(device_.Upload(*reader.stream, memory, piece.target));
    RETURN_IF_ERROR(reader.stream->Record(*slot.copied));
  }
  absl::MutexLock lock(&mutex_);
  JobProgress& progress = progress_of_[piece.job];
  ++progress.arrived;
  if (!piece.target.empty()) progress.copies.push_back(slot.copied.get());
  return absl::OkStatus();
}

absl::Status WeightReader::Read(Reader& reader) {
  ASSIGN_OR_RETURN(reader.stream, device_.CreateStream(StreamKind::kCompute));
  for (Slot& slot : reader.slots) {
    ASSIGN_OR_RETURN(slot.memory, device_.AllocateHost(CheckpointHasher::kPieceBytes));
    ASSIGN_OR_RETURN(slot.copied, device_.CreateEvent());
  }
  for (size_t turn = 0; !failed_; ++turn) {
    const size_t index = next_piece_++;
    if (index >= pieces_.size()) break;
    RETURN_IF_ERROR(ReadOne(pieces_[index], reader, reader.slots[turn % reader.slots.size()]));
  }
  return reader.stream->Synchronize();
}

absl::Status WeightReader::FinishJobs() {
  const size_t total = TotalBytes(jobs_);
  size_t done = 0;
  for (size_t i = 0; i < jobs_.size() && AwaitArrived(i); ++i) {
    // A slot that was used again meanwhile only makes this wait longer.
    for (const Event* const copy : progress_of_[i].copies) {
      RETURN_IF_ERROR(device_.Synchronize(*copy));
    }
    if (jobs_[i].finish) RETURN_IF_ERROR(jobs_[i].finish(progress_of_[i].target));
    size_t bytes = 0;
    for (const WeightJob::Part& part : jobs_[i].parts) bytes += part.tensor.num_bytes();
    done += bytes;
    if (options_.progress && bytes > 0) options_.progress(done, total);
    absl::MutexLock lock(&mutex_);
    num_finished_ = i + 1;
  }
  return absl::OkStatus();
}

absl::Status WeightReader::Run() {
  const size_t largest = LargestStaging(jobs_);
  ASSIGN_OR_RETURN(staging_, device_.Allocate(largest + std::min(largest, kStagingAhead),
                                              MemoryPurpose::kWeights));
  PlanStaging();
  PlanPieces();
  const auto num_threads =
      std::clamp<size_t>(pieces_.size(), 1, static_cast<size_t>(std::max(1, options_.num_threads)));
  std::vector<Reader> readers(num_threads);
  std::vector<std::thread> threads;
  for (Reader& reader : readers) {
    threads.emplace_back([this, &reader] {
      if (absl::Status status = Read(reader); !status.ok()) Fail(std::move(status));
    });
  }
  if (absl::Status status = FinishJobs(); !status.ok()) Fail(std::move(status));
  for (std::thread& thread : threads) thread.join();
  absl::MutexLock lock(&mutex_);
  return status_;
}

}  // namespace

absl::Status RunWeightJobs(Device& device, const std::vector<WeightJob>& jobs,
                           const WeightJobOptions& options) {
  if (options.source == WeightSource::kMapping) {
    return RunFromMapping(device, jobs, options.progress);
  }
  return WeightReader(device, jobs, options).Run();
}

}  // namespace retroinfer
