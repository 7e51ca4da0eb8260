#include "kv_store_service/lease/worker_lease.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/log/check.h"
#include "common/shm/data_plane.h"
#include "common/shm/descriptor_protocol.h"
#include "common/status/status_macros.h"
#include "kv_store_service/directory/arena_segments.h"
#include "kv_store_service/directory/segment_checks.h"

namespace retroinfer::kvstore {
namespace {

constexpr size_t kFingerprintBytesMax = 64;

absl::Status CheckLimits(const AttachParameters& parameters) {
  RETURN_IF_ERROR(CheckGeometry(parameters.geometry));
  RETURN_IF_ERROR(DataPlane::ValidatePlanes(parameters.num_planes, parameters.num_slots,
                                            parameters.log_capacity, parameters.request_capacity));
  if (!parameters.model_fingerprint.empty() &&
      parameters.model_fingerprint.size() <= kFingerprintBytesMax) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("model_fingerprint has ",
                                                 parameters.model_fingerprint.size(),
                                                 " bytes, needs 1 to ", kFingerprintBytesMax));
}

}  // namespace

absl::StatusOr<std::string> NewAttachToken() {
  std::string token(kAttachTokenBytes, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(token.data()), kAttachTokenBytes) != 1) {
    return absl::InternalError("no random bytes for an attach token");
  }
  return token;
}

void WorkerLease::AwaitAdoption(const StateNote& note) {
  RI_CHECK(phase_ == Phase::kStarting);
  phase_ = Phase::kAwaitingAdoption;
  awaited_ = note;
}

void WorkerLease::GiveUpAdoption() {
  phase_ = Phase::kStarting;
  awaited_.reset();
}

void WorkerLease::SetReady() {
  phase_ = Phase::kReady;
  awaited_.reset();
}

absl::Status WorkerLease::CheckAttach(const AttachParameters& parameters) const {
  RETURN_IF_ERROR(CheckLimits(parameters));
  if (is_leased_) {
    return absl::FailedPreconditionError(absl::StrCat("another worker (process ", attachment_->pid,
                                                      ") is attached; a store serves one worker"));
  }
  switch (phase_) {
    case Phase::kStarting:
      return absl::UnavailableError("the store is starting: it allocates its arena");
    case Phase::kAwaitingAdoption:
      if (!parameters.hand_back) {
        return absl::UnavailableError(
            absl::StrCat("the store is starting: it waits for the worker (process ",
                         awaited_->worker_pid, ") that still holds its memory"));
      }
      if (!(parameters.geometry == awaited_->geometry) ||
          parameters.model_fingerprint != awaited_->model_fingerprint) {
        return absl::FailedPreconditionError(
            "the store waits for the worker that holds its memory, which has another model");
      }
      return absl::OkStatus();
    case Phase::kReady:
      return absl::OkStatus();
  }
  return absl::InternalError("unknown phase");
}

std::optional<Attachment> WorkerLease::Begin(Attachment attachment) {
  RI_CHECK(!is_leased_);
  std::optional<Attachment> before = std::move(attachment);
  attachment_.swap(before);
  last_call_number_ = 0;
  declaration_ = Declaration::kDone;
  return before;
}

absl::Status WorkerLease::CheckToken(const std::string& token) const {
  if (attachment_.has_value() && token.size() == kAttachTokenBytes &&
      CRYPTO_memcmp(token.data(), attachment_->token.data(), kAttachTokenBytes) == 0) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError("the attach token is not that of the attached worker");
}

absl::Status WorkerLease::CheckClaim(const std::string& token, bool hand_back) const {
  RETURN_IF_ERROR(CheckToken(token));
  if (!is_leased_ && attachment_->parameters.hand_back == hand_back) return absl::OkStatus();
  return absl::PermissionDeniedError(hand_back ? "this attachment hands no memory back"
                                               : "this attachment waits for no descriptors");
}

void WorkerLease::Start(pid_t pid, std::shared_ptr<WorkerPlanes> planes) {
  RI_CHECK(attachment_.has_value() && !is_leased_);
  is_leased_ = true;
  attachment_->pid = pid;
  attachment_->planes = std::move(planes);
  next_part_ = 0;
  if (attachment_->parameters.hand_back) declaration_ = Declaration::kDue;
}

absl::Status WorkerLease::BeginCall(const std::string& token, uint64_t call_number,
                                    uint64_t sequence_id) {
  RETURN_IF_ERROR(CheckToken(token));
  if (sequence_id >= kOwnSequences) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence ", sequence_id, ": needs a number below ", kOwnSequences));
  }
  if (!is_leased_) {
    return absl::FailedPreconditionError(
        "the worker has not yet connected to the descriptor socket");
  }
  if (declaration_ != Declaration::kDone) {
    return absl::FailedPreconditionError(
        "the worker handed memory back and must declare what is in it first");
  }
  if (call_number <= last_call_number_) {
    return absl::AbortedError(
        absl::StrCat("call ", call_number, " came after call ", last_call_number_));
  }
  last_call_number_ = call_number;
  return absl::OkStatus();
}

absl::Status WorkerLease::BeginPart(const std::string& token, uint64_t index) {
  RETURN_IF_ERROR(CheckToken(token));
  if (!is_leased_ || declaration_ != Declaration::kDue) {
    return absl::FailedPreconditionError(
        "nothing is to be declared, or a part was refused: hand the memory back first");
  }
  if (index == next_part_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("part ", index, " of a declaration, the next one is ", next_part_));
}

void WorkerLease::EndPart(bool was_last) {
  ++next_part_;
  if (was_last) declaration_ = Declaration::kDone;
}

Attachment WorkerLease::End() {
  RI_CHECK(attachment_.has_value());
  Attachment ended = *std::move(attachment_);
  attachment_.reset();
  is_leased_ = false;
  return ended;
}

}  // namespace retroinfer::kvstore
