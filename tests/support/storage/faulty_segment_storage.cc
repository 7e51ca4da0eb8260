#include "tests/support/storage/faulty_segment_storage.h"

#include "common/status/status_macros.h"

namespace retroinfer::kvstore {
namespace {

absl::Status NoSpace() {
  return absl::ResourceExhaustedError("writing a payload: No space left on device (injected)");
}
absl::Status IoError() { return absl::InternalError("Input/output error (injected)"); }

}  // namespace

void FaultySegmentStorage::FailWrites(DiskFault fault, int count) {
  absl::MutexLock lock(&mutex_);
  writes_ = {fault, count};
}

void FaultySegmentStorage::FailReads(DiskFault fault, int count) {
  absl::MutexLock lock(&mutex_);
  reads_ = {fault, count};
}

void FaultySegmentStorage::SetDelay(absl::Duration delay) {
  absl::MutexLock lock(&mutex_);
  delay_ = delay;
  ++num_delays_set_;
}

DiskFault FaultySegmentStorage::Next(Plan& plan) {
  absl::MutexLock lock(&mutex_);
  const DiskFault fault = plan.count != 0 ? plan.fault : DiskFault::kNone;
  if (plan.count > 0) --plan.count;
  const auto is_changed = [this, num_delays = num_delays_set_]() ABSL_SHARED_LOCKS_REQUIRED(
                              mutex_) { return num_delays_set_ != num_delays; };
  mutex_.AwaitWithTimeout(absl::Condition(&is_changed), delay_);
  return fault;
}

absl::Status FaultySegmentStorage::BeforeWrite() {
  switch (Next(writes_)) {
    case DiskFault::kNoSpace:
      return NoSpace();
    case DiskFault::kIoError:
      return IoError();
    case DiskFault::kNone:
    case DiskFault::kCorrupt:
      break;
  }
  return absl::OkStatus();
}

absl::Status FaultySegmentStorage::BeforeRead(const SegmentName* name) {
  switch (Next(reads_)) {
    case DiskFault::kIoError:
      return IoError();
    case DiskFault::kCorrupt:
      if (name == nullptr) break;
      RETURN_IF_ERROR(wrapped_.Quarantine(*name, "injected"));
      return absl::DataLossError("the checksum of chunk 0 is wrong (injected)");
    case DiskFault::kNone:
    case DiskFault::kNoSpace:
      break;
  }
  return absl::OkStatus();
}

absl::Status FaultySegmentStorage::Put(const SegmentRecord& record,
                                       std::span<const int32_t> token_ids,
                                       std::span<const std::byte> image) {
  RETURN_IF_ERROR(BeforeWrite());
  return wrapped_.Put(record, token_ids, image);
}

absl::StatusOr<SegmentRecord> FaultySegmentStorage::Find(const SegmentName& name,
                                                         std::span<const int32_t> token_ids) {
  RETURN_IF_ERROR(BeforeRead(&name));
  return wrapped_.Find(name, token_ids);
}

std::optional<SegmentRecord> FaultySegmentStorage::Peek(const SegmentName& name) {
  return wrapped_.Peek(name);
}

absl::StatusOr<std::vector<int32_t>> FaultySegmentStorage::ReadTokens(const SegmentName& name) {
  RETURN_IF_ERROR(BeforeRead(&name));
  return wrapped_.ReadTokens(name);
}

absl::Status FaultySegmentStorage::Read(const SegmentName& name, std::span<std::byte> image) {
  RETURN_IF_ERROR(BeforeRead(&name));
  return wrapped_.Read(name, image);
}

class FaultySegmentStorage::FaultyParts : public ImageParts {
 public:
  FaultyParts(FaultySegmentStorage* storage, const SegmentName& name,
              std::unique_ptr<ImageParts> wrapped)
      : storage_(*storage), name_(name), wrapped_(std::move(wrapped)) {}

  uint32_t part_bytes() const override { return wrapped_->part_bytes(); }
  uint64_t image_bytes() const override { return wrapped_->image_bytes(); }
  const std::vector<int32_t>& token_ids() const override { return wrapped_->token_ids(); }
  absl::Status Read(std::span<const PartRun> runs, std::span<std::byte> image) override {
    RETURN_IF_ERROR(storage_.BeforeRead(&name_));
    return wrapped_->Read(runs, image);
  }

 private:
  FaultySegmentStorage& storage_;
  const SegmentName name_;
  const std::unique_ptr<ImageParts> wrapped_;
};

absl::StatusOr<std::unique_ptr<ImageParts>> FaultySegmentStorage::OpenParts(
    const SegmentName& name) {
  RETURN_IF_ERROR(BeforeRead(&name));
  ASSIGN_OR_RETURN(std::unique_ptr<ImageParts> parts, wrapped_.OpenParts(name));
  if (parts == nullptr) return nullptr;
  return std::make_unique<FaultyParts>(this, name, std::move(parts));
}

absl::StatusOr<size_t> FaultySegmentStorage::Delete(std::span<const SegmentName> names) {
  RETURN_IF_ERROR(BeforeWrite());
  return wrapped_.Delete(names);
}

void FaultySegmentStorage::Touch(std::span<const SegmentName> names, absl::Time when) {
  wrapped_.Touch(names, when);
}

absl::Status FaultySegmentStorage::FlushTouches() {
  RETURN_IF_ERROR(BeforeWrite());
  return wrapped_.FlushTouches();
}

std::vector<SegmentRecord> FaultySegmentStorage::List() { return wrapped_.List(); }

absl::Status FaultySegmentStorage::PutContext(const ContextRecord& context) {
  RETURN_IF_ERROR(BeforeWrite());
  return wrapped_.PutContext(context);
}

absl::StatusOr<ContextRecord> FaultySegmentStorage::FindContext(const Hash256& salt_hash,
                                                                std::string_view context_name) {
  return wrapped_.FindContext(salt_hash, context_name);
}

absl::Status FaultySegmentStorage::DeleteContext(const Hash256& salt_hash,
                                                 std::string_view context_name) {
  RETURN_IF_ERROR(BeforeWrite());
  return wrapped_.DeleteContext(salt_hash, context_name);
}

std::vector<ContextRecord> FaultySegmentStorage::ListContexts() { return wrapped_.ListContexts(); }

absl::Status FaultySegmentStorage::Quarantine(const SegmentName& name, std::string_view reason) {
  return wrapped_.Quarantine(name, reason);
}

absl::StatusOr<size_t> FaultySegmentStorage::PurgeQuarantine() {
  RETURN_IF_ERROR(BeforeWrite());
  return wrapped_.PurgeQuarantine();
}

absl::StatusOr<VerifyReport> FaultySegmentStorage::VerifyAll() {
  RETURN_IF_ERROR(BeforeRead(nullptr));
  return wrapped_.VerifyAll();
}

StorageStats FaultySegmentStorage::Stats() { return wrapped_.Stats(); }

}  // namespace retroinfer::kvstore
