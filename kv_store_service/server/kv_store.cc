#include "kv_store_service/server/kv_store.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/hash/segment_name.h"
#include "common/log/check.h"
#include "common/shm/data_plane.h"
#include "common/shm/descriptor_protocol.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"

namespace retroinfer::kvstore {
namespace {

constexpr size_t kFingerprintBytesMax = 64;

absl::StatusOr<std::string> NewToken() {
  std::string token(kAttachTokenBytes, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(token.data()), kAttachTokenBytes) != 1) {
    return absl::InternalError("no random bytes for an attach token");
  }
  return token;
}

absl::StatusOr<common::UniqueFd> Duplicate(int fd) {
  common::UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return common::ErrnoStatus(errno, "duplicating a descriptor");
  return copy;
}

void AddCounters(const DataPlaneStats& from, DataPlaneStats* to) {
  to->entries_replayed += from.entries_replayed;
  to->entries_refused += from.entries_refused;
  to->cursors_refused += from.cursors_refused;
  to->requests_posted += from.requests_posted;
  to->evictions_applied += from.evictions_applied;
  to->evictions_kept += from.evictions_kept;
}

void AddCounters(const PrefixCounters& from, PrefixCounters* to) {
  to->queries_tokens += from.queries_tokens;
  to->hits_tokens += from.hits_tokens;
  to->evictions += from.evictions;
}

void AddSegmentStats(const SegmentStore& segments, StoreStats* stats) {
  const SegmentDirectory& directory = segments.directory();
  stats->free_pages = segments.allocator().free_pages();
  stats->largest_free_pages = segments.allocator().largest_free();
  stats->committed_segments = directory.num_committed();
  stats->reserved_extents = directory.num_extents() - stats->committed_segments;
  stats->sequences = directory.num_sequences();
  stats->clusters = segments.clusters().num_clusters();
  stats->named_segments = directory.num_named();
  stats->named_pages = directory.named_pages();
  stats->unreferenced_pages = directory.unreferenced_pages();
  AddCounters(segments.counters(), &stats->prefix);
}

}  // namespace

KvStore::KvStore(Options options, StateFile state_file)
    : options_(std::move(options)), state_file_(std::move(state_file)) {}

KvStore::~KvStore() {
  // Its callbacks need everything else.
  tier_.reset();
}

void KvStore::AwaitAdoption(const StateNote& note) {
  absl::MutexLock lock(&mutex_);
  RI_CHECK(phase_ == Phase::kStarting);
  phase_ = Phase::kAwaitingAdoption;
  awaited_ = note;
}

KvStore::Adoption KvStore::PollAdoption(absl::Time deadline) {
  absl::MutexLock lock(&mutex_);
  if (phase_ == Phase::kReady) return Adoption::kAdopted;
  const bool hopeless = absl::Now() >= deadline || !state_file_.HolderLives(*awaited_);
  if (!hopeless || attachment_.has_value()) return Adoption::kPending;
  phase_ = Phase::kStarting;
  awaited_.reset();
  state_file_.Remove();
  return Adoption::kGivenUp;
}

void KvStore::SetArena(common::SealedMemory arena) {
  absl::MutexLock lock(&mutex_);
  RI_CHECK(phase_ == Phase::kStarting);
  DropSegments();
  former_plane_ = {};
  arena_ = std::move(arena);
  phase_ = Phase::kReady;
}

absl::Status KvStore::CheckAttach(const AttachParameters& parameters) const {
  RETURN_IF_ERROR(SegmentStore::ValidateGeometry(parameters.geometry));
  RETURN_IF_ERROR(DataPlane::ValidateSizes(parameters.num_slots, parameters.log_capacity,
                                           parameters.request_capacity));
  if (parameters.model_fingerprint.empty() ||
      parameters.model_fingerprint.size() > kFingerprintBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("model_fingerprint has ",
                                                   parameters.model_fingerprint.size(),
                                                   " bytes, needs 1 to ", kFingerprintBytesMax));
  }
  if (attachment_.has_value() && attachment_->leased) {
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

absl::StatusOr<AttachResult> KvStore::Attach(const AttachParameters& parameters) {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(CheckAttach(parameters));
  Attachment attachment;
  ASSIGN_OR_RETURN(attachment.token, NewToken());
  attachment.parameters = parameters;
  attachment.claim_deadline = absl::Now() + options_.attach_timeout;
  AttachResult result;
  result.store_writes_arena = tier_ != nullptr;
  result.token = attachment.token;
  if (!parameters.hand_back) {
    const DataPlaneHeader header =
        MakeDataPlaneHeader(parameters.num_slots, parameters.log_capacity,
                            parameters.request_capacity, arena_.bytes().size() / kPageBytes);
    ASSIGN_OR_RETURN(attachment.plane_memory,
                     common::SealedMemory::Create("retroinfer data plane", header.total_bytes, 1));
    DataPlane::Format(attachment.plane_memory.bytes(), header);
    result.arena_bytes = arena_.bytes().size();
    result.data_plane_bytes = header.total_bytes;
  }
  attachment_ = std::move(attachment);
  return result;
}

absl::Status KvStore::Detach(const std::string& token) {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(CheckToken(token));
  EndAttachment("it detached");
  return absl::OkStatus();
}

absl::StatusOr<DescriptorPair> KvStore::ClaimDescriptors(const std::string& token, pid_t pid) {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(DrainTier(token));
  RETURN_IF_ERROR(CheckToken(token));
  if (attachment_->leased || attachment_->parameters.hand_back) {
    return absl::PermissionDeniedError("this attachment waits for no descriptors");
  }
  DescriptorPair pair;
  ASSIGN_OR_RETURN(pair.arena, Duplicate(arena_.fd()));
  ASSIGN_OR_RETURN(pair.data_plane, Duplicate(attachment_->plane_memory.fd()));
  ASSIGN_OR_RETURN(const DataPlane plane, DataPlane::Open(attachment_->plane_memory.bytes()));
  TakeArenaFromFormerWorker();
  StartLease(plane, pid);
  return pair;
}

void KvStore::TakeArenaFromFormerWorker() {
  if (former_plane_.bytes().empty()) return;
  auto plane = DataPlane::Open(former_plane_.bytes());
  if (plane.ok()) plane->arena_taken().store(1, std::memory_order_seq_cst);
  former_plane_ = {};
}

absl::Status KvStore::HandBack(const std::string& token, pid_t pid, common::UniqueFd arena,
                               common::UniqueFd data_plane) {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(DrainTier(token));
  RETURN_IF_ERROR(CheckToken(token));
  if (attachment_->leased || !attachment_->parameters.hand_back) {
    return absl::PermissionDeniedError("this attachment hands no memory back");
  }
  absl::Status status = TakeHandedBack(std::move(arena), std::move(data_plane));
  if (!status.ok()) {
    EndAttachment(std::string(status.message()));
    return status;
  }
  phase_ = Phase::kReady;
  awaited_.reset();
  ++adoptions_;
  attachment_->restore_awaited = true;
  ASSIGN_OR_RETURN(const DataPlane plane, DataPlane::Open(attachment_->plane_memory.bytes()));
  StartLease(plane, pid);
  return absl::OkStatus();
}

absl::Status KvStore::TakeHandedBack(common::UniqueFd arena_fd, common::UniqueFd plane_fd) {
  const AttachParameters& declared = attachment_->parameters;
  ASSIGN_OR_RETURN(
      common::SealedMemory arena,
      common::SealedMemory::Adopt(std::move(arena_fd), options_.handed_back_bytes_max));
  const uint64_t arena_pages = arena.bytes().size() / kPageBytes;
  const DataPlaneHeader expected = MakeDataPlaneHeader(declared.num_slots, declared.log_capacity,
                                                       declared.request_capacity, arena_pages);
  ASSIGN_OR_RETURN(common::SealedMemory plane_memory,
                   common::SealedMemory::Adopt(std::move(plane_fd), expected.total_bytes));
  ASSIGN_OR_RETURN(const DataPlane plane, DataPlane::Open(plane_memory.bytes()));
  const DataPlaneHeader& header = plane.header();
  if (header.num_slots != declared.num_slots || header.log_capacity != declared.log_capacity ||
      header.request_capacity != declared.request_capacity || header.arena_pages != arena_pages) {
    return absl::InvalidArgumentError(
        "the data plane that was handed back does not fit the arena and what was declared");
  }
  if (plane.arena_taken().load(std::memory_order_acquire) != 0) {
    return absl::FailedPreconditionError(
        "another worker has used the arena since: what this one kept there is lost; start it "
        "again");
  }
  if (awaited_.has_value() && awaited_->arena_bytes != arena.bytes().size()) {
    return absl::InvalidArgumentError(absl::StrCat("the arena that was handed back has ",
                                                   arena.bytes().size(), " bytes, needs ",
                                                   awaited_->arena_bytes));
  }
  DropSegments();
  former_plane_ = {};
  arena_ = std::move(arena);
  attachment_->plane_memory = std::move(plane_memory);
  return absl::OkStatus();
}

void KvStore::StartLease(const DataPlane& plane, pid_t pid) {
  Attachment& attachment = *attachment_;
  const AttachParameters& parameters = attachment.parameters;
  attachment.leased = true;
  attachment.pid = pid;
  PrepareSegments(parameters);
  DataPlaneServer::Options plane_options;
  plane_options.watermarks = options_.watermarks;
  plane_options.await_reset = parameters.hand_back;
  attachment.plane_server = std::make_unique<DataPlaneServer>(plane, plane_options);
  attachment.plane_server->Start();
  ++workers_attached_;
  const absl::Status noted = state_file_.Write(
      {pid, arena_.bytes().size(), parameters.geometry, parameters.model_fingerprint});
  if (!noted.ok()) {
    spdlog::error("a restarted store will not know of this worker: {}",
                  std::string(noted.message()));
  }
  spdlog::info("worker {} attached{}: {} layers, {} KV heads, head_dim {}, {}; {} slots", pid,
               parameters.hand_back ? " and handed its memory back" : "",
               parameters.geometry.num_layers, parameters.geometry.num_kv_heads,
               parameters.geometry.head_dim, std::string(DTypeName(parameters.geometry.dtype)),
               parameters.num_slots);
}

void KvStore::PrepareSegments(const AttachParameters& parameters) {
  if (segments_ == nullptr || !(segments_->geometry() == parameters.geometry)) {
    DropSegments();
    segments_ = std::make_unique<SegmentStore>(arena_.bytes(), parameters.geometry);
    segments_->KeepNamed(&pinned_);
  }
  fingerprint_ = parameters.model_fingerprint;
  segments_->SetFingerprint(common::FingerprintHash(fingerprint_));
}

void KvStore::EndLease(const std::string& token, const std::string& reason) {
  absl::MutexLock lock(&mutex_);
  if (CheckToken(token).ok()) EndAttachment(reason);
}

bool KvStore::HasLease(const std::string& token) const {
  absl::MutexLock lock(&mutex_);
  return CheckToken(token).ok() && attachment_->leased;
}

void KvStore::ExpireAttachment(absl::Time now) {
  absl::MutexLock lock(&mutex_);
  if (attachment_.has_value() && !attachment_->leased && now >= attachment_->claim_deadline) {
    EndAttachment("it did not connect to the descriptor socket in time");
  }
}

void KvStore::EndAttachment(const std::string& reason) {
  if (attachment_->leased) {
    attachment_->plane_server->Stop();
    AddCounters(attachment_->plane_server->stats(), &ended_planes_);
    former_plane_ = std::move(attachment_->plane_memory);
    const size_t num_sequences = segments_->directory().num_sequences();
    const uint64_t freed = segments_->ReleaseAll();
    spdlog::info(
        "worker {} is gone ({}): freed {} sequences, {} pages; {} named segments in {} pages stay",
        attachment_->pid, reason, num_sequences, freed, segments_->directory().num_named(),
        segments_->directory().named_pages());
    state_file_.Remove();
  } else {
    spdlog::warn("an attachment was given up: {}", reason);
  }
  attachment_.reset();
}

absl::Status KvStore::CheckToken(const std::string& token) const {
  if (attachment_.has_value() && token.size() == kAttachTokenBytes &&
      CRYPTO_memcmp(token.data(), attachment_->token.data(), kAttachTokenBytes) == 0) {
    return absl::OkStatus();
  }
  return absl::PermissionDeniedError("the attach token is not that of the attached worker");
}

absl::Status KvStore::BeginCall(const std::string& token, uint64_t call_number,
                                uint64_t sequence_id) {
  RETURN_IF_ERROR(CheckToken(token));
  if (sequence_id >= kOwnSequences) {
    return absl::InvalidArgumentError(
        absl::StrCat("sequence ", sequence_id, ": needs a number below ", kOwnSequences));
  }
  if (!attachment_->leased) {
    return absl::FailedPreconditionError(
        "the worker has not yet connected to the descriptor socket");
  }
  if (attachment_->restore_awaited) {
    return absl::FailedPreconditionError(
        "the worker handed memory back and must call RestoreSegments first");
  }
  if (call_number <= attachment_->last_call_number) {
    return absl::AbortedError(
        absl::StrCat("call ", call_number, " came after call ", attachment_->last_call_number));
  }
  attachment_->last_call_number = call_number;
  return absl::OkStatus();
}

absl::StatusOr<Reservation> KvStore::Reserve(const std::string& token, uint64_t call_number,
                                             const ReserveRequest& request, bool compute_anyway) {
  ToPersist to_persist;
  absl::StatusOr<Reservation> reservation;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(BeginCall(token, call_number, request.sequence_id));
    // Who takes only what is there does not wait for it, but the next one finds it.
    if (tier_ != nullptr && !compute_anyway) StartRestore(request);
    reservation = segments_->Reserve(request, compute_anyway);
    if (absl::IsResourceExhausted(reservation.status())) ++reservations_refused_;
    if (tier_ != nullptr && reservation.ok()) {
      TouchDurable(*reservation);
      // What the disk had no time or no room for when it was committed.
      to_persist = PersistRequestsFor(
          std::span<const ExtentRecord>(reservation->extents).first(reservation->num_cached));
    }
  }
  Persist(std::move(to_persist));
  return reservation;
}

absl::StatusOr<std::vector<ExtentRecord>> KvStore::Commit(
    const std::string& token, uint64_t call_number, uint64_t sequence_id,
    std::span<const SegmentToCommit> segments) {
  ToPersist to_persist;
  absl::StatusOr<std::vector<ExtentRecord>> extents;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(BeginCall(token, call_number, sequence_id));
    const size_t before = segments_->directory().num_committed();
    extents = segments_->Commit(sequence_id, segments);
    if (!extents.ok()) {
      ++segments_refused_;
      spdlog::error("refused to commit segments of sequence {}: {}", sequence_id,
                    std::string(extents.status().message()));
      return extents;
    }
    segments_committed_ += segments_->directory().num_committed() - before;
    if (tier_ != nullptr) to_persist = PersistRequestsFor(*extents);
  }
  Persist(std::move(to_persist));
  return extents;
}

absl::StatusOr<uint64_t> KvStore::Release(const std::string& token, uint64_t call_number,
                                          uint64_t sequence_id) {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(BeginCall(token, call_number, sequence_id));
  return segments_->Release(sequence_id);
}

absl::Status KvStore::Restore(const std::string& token,
                              std::span<const SequenceToRestore> sequences,
                              std::span<const SegmentToRestore> named) {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(CheckToken(token));
  if (!attachment_->leased || !attachment_->restore_awaited) {
    return absl::FailedPreconditionError("nothing is to be restored");
  }
  RETURN_IF_ERROR(segments_->Restore(sequences, named));
  attachment_->restore_awaited = false;
  const SegmentDirectory& directory = segments_->directory();
  spdlog::info("worker {} restored {} sequences, {} extents, {} segments, {} of them named",
               attachment_->pid, directory.num_sequences(), directory.num_extents(),
               directory.num_committed(), directory.num_named());
  return absl::OkStatus();
}

std::vector<ExtentListing> KvStore::List(uint64_t after_extent_id, size_t limit) const {
  absl::MutexLock lock(&mutex_);
  std::vector<ExtentListing> listings;
  if (segments_ == nullptr) return listings;
  const SegmentStore& segments = *segments_;
  for (const ExtentRecord* record : segments.directory().List(after_extent_id, limit)) {
    listings.push_back({*record, segments.clusters().num_clusters(record->id)});
  }
  return listings;
}

StoreStats KvStore::stats() const {
  StoreStats stats;
  if (tier_ != nullptr) stats.durable = tier_->stats();
  stats.durable_missing = !missing_tier_.ok();
  absl::MutexLock lock(&mutex_);
  stats.data_plane = ended_planes_;
  stats.workers_attached = workers_attached_;
  stats.adoptions = adoptions_;
  stats.segments_committed = segments_committed_;
  stats.segments_refused = segments_refused_;
  stats.reservations_refused = reservations_refused_;
  stats.arena_pages = stats.free_pages = stats.largest_free_pages =
      arena_.bytes().size() / kPageBytes;
  stats.prefix = ended_prefix_;
  stats.durable_skipped = durable_skipped_;
  if (segments_ != nullptr) AddSegmentStats(*segments_, &stats);
  if (!attachment_.has_value() || !attachment_->leased) return stats;
  stats.worker_attached = true;
  stats.worker_pid = attachment_->pid;
  stats.geometry = attachment_->parameters.geometry;
  stats.model_fingerprint = attachment_->parameters.model_fingerprint;
  const DataPlaneStats plane = attachment_->plane_server->stats();
  AddCounters(plane, &stats.data_plane);
  stats.data_plane.used_slots = plane.used_slots;
  stats.data_plane.num_slots = plane.num_slots;
  stats.data_plane.in_flight = plane.in_flight;
  stats.data_plane.log_depth = plane.log_depth;
  return stats;
}

std::optional<uint64_t> KvStore::data_plane_rounds() const {
  absl::MutexLock lock(&mutex_);
  if (!attachment_.has_value() || !attachment_->leased) return std::nullopt;
  return attachment_->plane_server->num_rounds();
}

}  // namespace retroinfer::kvstore
