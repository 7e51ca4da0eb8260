// Who may use the arena: the attachment that waits, the lease that is held, and the worker that a
// restarted store waits for.
//
// An attachment begins with Begin(), which promises nothing: a later one replaces it. The worker's
// connection to the descriptor socket makes it the lease (Start()); from then on nobody else can
// attach until End(). A worker that handed its memory back must declare what is in it before any
// other call, in parts that are counted.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/kv/kv_geometry.h"
#include "kv_store_service/lease/state_file.h"
#include "kv_store_service/lease/worker_planes.h"

namespace retroinfer::kvstore {

// What a worker asks for when it attaches.
struct AttachParameters {
  KvGeometry geometry;
  std::string model_fingerprint;
  uint32_t num_slots = 0;
  uint32_t log_capacity = 0;
  uint32_t request_capacity = 0;
  bool hand_back = false;
  uint32_t num_planes = 1;  // that are alike, one for each rank of the worker

  PlaneSizes plane_sizes() const { return {num_slots, log_capacity, request_capacity, num_planes}; }
};

// One worker's attachment.
struct Attachment {
  std::string token;  // kAttachTokenBytes
  AttachParameters parameters;
  absl::Time claim_deadline;
  pid_t pid = 0;                         // of the lease; 0: not known
  std::shared_ptr<WorkerPlanes> planes;  // null until memory was handed back
};

// Returns a new token. INTERNAL without random bytes.
absl::StatusOr<std::string> NewAttachToken();

// Threads: one at a time.
// Owns:    the attachment; it knows and checks who may call, and touches neither memory nor
// segments.
class WorkerLease {
 public:
  // Life: kStarting -> kReady by SetReady(), when there is an arena; or kStarting ->
  // kAwaitingAdoption by AwaitAdoption() -> kReady, or back to kStarting by GiveUpAdoption().
  void AwaitAdoption(const StateNote& note);
  // Returns the worker that a restarted store waits for; nothing if it waits for none.
  const std::optional<StateNote>& awaited() const { return awaited_; }
  void GiveUpAdoption();
  void SetReady();
  bool is_starting() const { return phase_ == Phase::kStarting; }
  bool is_ready() const { return phase_ == Phase::kReady; }

  // Whether a worker may attach now: errors as of AttachWorker in kv_store.proto.
  absl::Status CheckAttach(const AttachParameters& parameters) const;
  // Begins an attachment. It replaces an attachment without lease, which is returned.
  //
  // REQUIRES: nobody has a lease.
  std::optional<Attachment> Begin(Attachment attachment);

  // Returns PERMISSION_DENIED unless `token` is that of the present attachment. Compares in
  // constant time.
  absl::Status CheckToken(const std::string& token) const;
  // Returns PERMISSION_DENIED unless the attachment of `token` waits for its worker's connection,
  // to claim descriptors or, with `hand_back`, to hand memory back.
  absl::Status CheckClaim(const std::string& token, bool hand_back) const;
  // Makes the attachment the lease of process `pid`. With hand_back a declaration is due next.
  //
  // REQUIRES: there is an attachment with planes and without a lease.
  void Start(pid_t pid, std::shared_ptr<WorkerPlanes> planes);
  // Checks a call that changes segments and notes its number.
  //
  // Returns: PERMISSION_DENIED, INVALID_ARGUMENT for a sequence of the store's own,
  //          FAILED_PRECONDITION without a lease or before the declaration, ABORTED for a call that
  //          comes late.
  absl::Status BeginCall(const std::string& token, uint64_t call_number, uint64_t sequence_id);

  // Checks that part `index` of a declaration is the next one.
  //
  // Returns: PERMISSION_DENIED; FAILED_PRECONDITION if nothing is to be declared, or after a part
  //          that was refused: the memory is to be handed back again.
  absl::Status BeginPart(const std::string& token, uint64_t index);
  // Notes that the part of the last BeginPart() was taken over. `was_last`: no part follows.
  void EndPart(bool was_last);
  // Refuses all further parts, after one that did not fit.
  void RefuseDeclaration() { declaration_ = Declaration::kRefused; }

  // Ends the attachment and returns it. REQUIRES: there is one.
  Attachment End();
  // Whether the attachment has waited too long for its connection.
  bool IsLate(absl::Time now) const {
    return attachment_.has_value() && !is_leased_ && now >= attachment_->claim_deadline;
  }

  bool has_attachment() const { return attachment_.has_value(); }
  // The attachment that has the lease; null if none has.
  const Attachment* holder() const { return is_leased_ ? &*attachment_ : nullptr; }
  // REQUIRES: there is one.
  const Attachment& attachment() const { return *attachment_; }

 private:
  enum class Phase { kStarting, kAwaitingAdoption, kReady };
  enum class Declaration { kDone, kDue, kRefused };

  Phase phase_ = Phase::kStarting;
  std::optional<StateNote> awaited_;
  std::optional<Attachment> attachment_;
  bool is_leased_ = false;
  uint64_t last_call_number_ = 0;
  Declaration declaration_ = Declaration::kDone;
  uint64_t next_part_ = 0;
};

}  // namespace retroinfer::kvstore
