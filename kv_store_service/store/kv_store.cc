#include "kv_store_service/store/kv_store.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/clock/steady_now.h"
#include "common/hash/segment_name.h"
#include "common/log/check.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"
#include "kv_store_service/lease/handed_back_memory.h"

namespace retroinfer::kvstore {
namespace {

absl::StatusOr<common::UniqueFd> Duplicate(int fd) {
  common::UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  if (!copy.valid()) return common::ErrnoStatus(errno, "duplicating a descriptor");
  return copy;
}

void LogAttached(const AttachParameters& parameters, pid_t pid) {
  spdlog::info("worker {} attached{}: {} layers, {} KV heads, head_dim {}, {}; {} slots", pid,
               parameters.hand_back ? " and handed its memory back" : "",
               parameters.geometry.num_layers, parameters.geometry.num_kv_heads,
               parameters.geometry.head_dim, std::string(parameters.geometry.format.name),
               parameters.num_slots);
}

}  // namespace

KvStore::KvStore(Options options, StateFile state_file)
    : options_(std::move(options)), state_file_(std::move(state_file)) {}

KvStore::~KvStore() {
  // Its callbacks need everything else.
  tier_.reset();
}

void KvStore::SetDurableTier(std::unique_ptr<DurableTier> tier) {
  tier_ = std::move(tier);
  bridge_ = std::make_unique<TierBridge>(tier_.get(), [this](absl::FunctionRef<void()> work) {
    absl::MutexLock lock(&mutex_);
    work();
  });
}

bool KvStore::IsReferenced(const SegmentName& name) const {
  absl::MutexLock lock(&mutex_);
  if (kept_.IsHeld(name, common::SteadyNow())) return true;
  if (here_.segments == nullptr) return false;
  const ExtentRecord* segment = here_.segments->directory().FindNamed(name);
  return segment != nullptr && segment->references > 0;
}

std::optional<KvStore::AttachedModel> KvStore::attached_model() const {
  absl::MutexLock lock(&mutex_);
  const Attachment* holder = lease_.holder();
  if (holder == nullptr) return std::nullopt;
  return AttachedModel{holder->parameters.geometry, holder->parameters.model_fingerprint};
}

std::vector<uint64_t> KvStore::PagesInArena(std::span<const SegmentName> names) const {
  std::vector<uint64_t> pages(names.size(), 0);
  absl::MutexLock lock(&mutex_);
  if (here_.segments == nullptr) return pages;
  for (size_t i = 0; i < names.size(); ++i) {
    const ExtentRecord* segment = here_.segments->directory().FindNamed(names[i]);
    if (segment != nullptr) pages[i] = segment->pages.count;
  }
  return pages;
}

void KvStore::PersistNow(std::span<const SegmentName> names,
                         const TierBridge::PersistFailed& failed) {
  TierBridge::ToPersist prepared;
  std::vector<SegmentName> of_another_model;
  {
    absl::MutexLock lock(&mutex_);
    if (here_.segments == nullptr) return;
    prepared = bridge_->PrepareNamed(here_, names, failed, &of_another_model);
  }
  bridge_->Submit(std::move(prepared));
  for (const SegmentName& name : of_another_model) {
    failed(name, absl::FailedPreconditionError("the segment is of a model that is not served now"));
  }
}

void KvStore::DropFromArena(std::span<const SegmentName> names) {
  absl::MutexLock lock(&mutex_);
  if (here_.segments == nullptr) return;
  // The end of a prefix first.
  for (auto name = names.rbegin(); name != names.rend(); ++name) here_.segments->EvictNamed(*name);
}

uint64_t KvStore::arena_bytes() const {
  absl::MutexLock lock(&mutex_);
  return here_.arena == nullptr ? 0 : here_.arena->num_bytes();
}

KvStore::Adoption KvStore::PollAdoption(absl::Time deadline) {
  std::optional<StateNote> note;
  {
    absl::MutexLock lock(&mutex_);
    if (lease_.is_ready()) return Adoption::kAdopted;
    note = lease_.awaited();
  }
  if (common::SteadyNow() < deadline && state_file_.HolderLives(*note)) return Adoption::kPending;
  {
    absl::MutexLock lock(&mutex_);
    if (lease_.is_ready()) return Adoption::kAdopted;
    if (lease_.has_attachment()) return Adoption::kPending;
    lease_.GiveUpAdoption();
  }
  NoteLease();
  return Adoption::kGivenUp;
}

void KvStore::SetArena(common::SealedMemory memory) {
  auto arena = std::make_shared<const Arena>(std::move(memory));
  Ended ended;
  {
    absl::MutexLock lock(&mutex_);
    RI_CHECK(lease_.is_starting());
    Replace(std::move(arena), nullptr, &ended);
    lease_.SetReady();
  }
  Finish(std::move(ended));
}

absl::StatusOr<AttachResult> KvStore::Attach(const AttachParameters& parameters) {
  Attachment attachment;
  ASSIGN_OR_RETURN(attachment.token, NewAttachToken());
  attachment.parameters = parameters;
  AttachResult result;
  result.store_writes_arena = tier_ != nullptr;
  result.token = attachment.token;
  std::optional<Attachment> before;  // destroyed without the lock
  absl::MutexLock one_at_a_time(&attach_mutex_);
  ArenaRef arena;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(lease_.CheckAttach(parameters));
    arena = here_.arena;
  }
  if (!parameters.hand_back) {
    ASSIGN_OR_RETURN(attachment.plane,
                     WorkerPlane::Make(parameters.plane_sizes(), arena->num_pages(),
                                       options_.watermarks, options_.make_plane_memory));
    result.arena_bytes = arena->num_bytes();
    result.data_plane_bytes = attachment.plane->num_bytes();
  }
  attachment.claim_deadline = common::SteadyNow() + options_.attach_timeout;
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(lease_.CheckAttach(parameters));
  if (arena != here_.arena) {
    return absl::UnavailableError("another worker has changed the arena meanwhile; try again");
  }
  before = lease_.Begin(std::move(attachment));
  return result;
}

absl::Status KvStore::Detach(const std::string& token) {
  Ended ended;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(lease_.CheckToken(token));
    EndAttachment("it detached", /*is_gone=*/true, &ended);
  }
  Finish(std::move(ended));
  return absl::OkStatus();
}

absl::Status KvStore::AwaitNoDiskWork() {
  if (bridge_ == nullptr) return absl::OkStatus();
  bridge_->ForgetPutOff();
  const absl::Condition idle(bridge_.get(), &TierBridge::is_idle);
  if (mutex_.AwaitWithTimeout(idle, options_.disk_drain_timeout)) return absl::OkStatus();
  return absl::UnavailableError("segments of the worker before are still written to the disk");
}

absl::StatusOr<DescriptorPair> KvStore::ClaimDescriptors(const std::string& token, pid_t pid) {
  DescriptorPair pair;
  Ended ended;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(lease_.CheckClaim(token, /*hand_back=*/false));
    if (here_.segments != nullptr &&
        !(here_.segments->geometry() == lease_.attachment().parameters.geometry)) {
      RETURN_IF_ERROR(AwaitNoDiskWork());
      RETURN_IF_ERROR(lease_.CheckClaim(token, /*hand_back=*/false));
    }
    ASSIGN_OR_RETURN(pair.arena, Duplicate(here_.arena->fd()));
    ASSIGN_OR_RETURN(pair.data_plane, Duplicate(lease_.attachment().plane->fd()));
    RETURN_IF_ERROR(lease_.attachment().plane->Start());
    ended.planes = former_.SayArenaTaken();
    StartLease(lease_.attachment().plane, pid, &ended);
  }
  Finish(std::move(ended));
  return pair;
}

absl::Status KvStore::CheckHandedBack(const std::string& token, const Arena& arena) {
  if (here_.arena != nullptr && arena.IsSameMemory(*here_.arena)) {
    RETURN_IF_ERROR(AwaitNoDiskWork());
  }
  RETURN_IF_ERROR(lease_.CheckClaim(token, /*hand_back=*/true));
  if (!lease_.awaited().has_value() || lease_.awaited()->arena_bytes == arena.num_bytes()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("the arena that was handed back has ",
                                                 arena.num_bytes(), " bytes, needs ",
                                                 lease_.awaited()->arena_bytes));
}

absl::Status KvStore::HandBack(const std::string& token, pid_t pid, common::UniqueFd arena,
                               common::UniqueFd data_plane) {
  AttachParameters declared;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(lease_.CheckClaim(token, /*hand_back=*/true));
    declared = lease_.attachment().parameters;
  }
  auto memory = AdoptHandedBackMemory(std::move(arena), std::move(data_plane), declared,
                                      options_.handed_back_bytes_max, options_.watermarks);
  absl::Status status = memory.status();
  Ended ended;
  {
    absl::MutexLock lock(&mutex_);
    if (status.ok()) status = CheckHandedBack(token, *memory->arena);
    if (absl::IsUnavailable(status)) return status;
    RETURN_IF_ERROR(lease_.CheckClaim(token, /*hand_back=*/true));
    if (status.ok() && (status = memory->plane->Start()).ok()) {
      Replace(std::move(memory->arena), nullptr, &ended);
      lease_.SetReady();
      ++adoptions_;
      StartLease(std::move(memory->plane), pid, &ended);
    } else {
      EndAttachment(std::string(status.message()), /*is_gone=*/true, &ended);
    }
  }
  Finish(std::move(ended));
  return status;
}

void KvStore::StartLease(std::shared_ptr<WorkerPlane> plane, pid_t pid, Ended* ended) {
  const AttachParameters& parameters = lease_.attachment().parameters;
  if (here_.segments == nullptr || !(here_.segments->geometry() == parameters.geometry)) {
    auto segments = std::make_shared<ArenaSegments>(here_.arena->num_pages(), parameters.geometry);
    segments->KeepNamed(&kept_.pinned());
    Replace(nullptr, std::move(segments), ended);
  }
  here_.fingerprint = parameters.model_fingerprint;
  here_.segments->SetFingerprint(common::FingerprintHash(here_.fingerprint));
  lease_.Start(pid, std::move(plane));
  ++workers_attached_;
  LogAttached(parameters, pid);
}

void KvStore::Replace(ArenaRef arena, std::shared_ptr<ArenaSegments> segments, Ended* ended) {
  if (arena != nullptr) {
    // Who hands the same memory back is no former worker now; others that had it before still are.
    const bool is_same = here_.arena != nullptr && arena->IsSameMemory(*here_.arena);
    ended->workers = is_same ? former_.TakeReturned() : former_.TakeAll();
    ended->before.push_back({std::exchange(here_.arena, std::move(arena)), nullptr, ""});
  }
  if (here_.segments != nullptr) AddCounters(here_.segments->counters(), &ended_prefix_);
  ended->before.push_back({nullptr, std::exchange(here_.segments, std::move(segments)), ""});
  if (here_.segments == nullptr) return;
  for (const FormerWorker& worker : former_.workers()) {
    for (const PageRun& pages : worker.pages) here_.segments->Withhold(pages);
  }
}

void KvStore::EndLease(const std::string& token, const std::string& reason) {
  Ended ended;
  {
    absl::MutexLock lock(&mutex_);
    if (!lease_.CheckToken(token).ok()) return;
    EndAttachment(reason, /*is_gone=*/false, &ended);
  }
  Finish(std::move(ended));
  ReadmitFormerPages();
}

bool KvStore::Tend(absl::Time now) {
  Ended ended;
  {
    absl::MutexLock lock(&mutex_);
    if (lease_.IsLate(now)) {
      EndAttachment("it did not connect to the descriptor socket in time", /*is_gone=*/true,
                    &ended);
    }
  }
  if (!ended.planes.empty()) Finish(std::move(ended));
  return ReadmitFormerPages();
}

void KvStore::EndAttachment(const std::string& reason, bool is_gone, Ended* ended) {
  const bool was_leased = lease_.holder() != nullptr;
  Attachment attachment = lease_.End();
  ended->planes.push_back(attachment.plane);
  if (!was_leased) {
    spdlog::warn("an attachment was given up: {}", reason);
    return;
  }
  ending_planes_.push_back(attachment.plane);
  const SegmentDirectory& directory = here_.segments->directory();
  const size_t num_sequences = directory.num_sequences();
  FormerWorker former{attachment.token, attachment.plane, {}};
  const uint64_t freed = here_.segments->ReleaseAll(is_gone ? nullptr : &former.pages);
  former_.Add(std::move(former));
  spdlog::info(
      "worker {} is gone ({}): freed {} sequences, {} pages; {} named segments in {} pages stay",
      attachment.pid, reason, num_sequences, freed, directory.num_named(), directory.named_pages());
}

void KvStore::Finish(Ended ended) {
  for (const std::shared_ptr<WorkerPlane>& plane : ended.planes) {
    if (plane == nullptr) continue;
    plane->Stop();
    absl::MutexLock lock(&mutex_);
    if (std::erase(ending_planes_, plane) > 0) AddCounters(plane->stats(), &ended_planes_);
  }
  NoteLease();
}

void KvStore::NoteLease() {
  absl::MutexLock one_at_a_time(&note_mutex_);
  std::optional<StateNote> note;
  {
    absl::MutexLock lock(&mutex_);
    if (lease_.awaited().has_value()) return;  // the note is of an earlier process
    if (const Attachment* holder = lease_.holder()) {
      note = StateNote{holder->pid, here_.arena->num_bytes(), holder->parameters.geometry,
                       holder->parameters.model_fingerprint};
    }
  }
  if (!note.has_value()) return state_file_.Remove();
  const absl::Status noted = state_file_.Write(*note);
  if (noted.ok()) return;
  spdlog::error("a restarted store will not know of this worker: {}", std::string(noted.message()));
}

bool KvStore::ReadmitFormerPages() {
  std::vector<std::string> tokens;
  {
    absl::MutexLock lock(&mutex_);
    for (const FormerWorker& worker : former_.workers()) {
      if (!worker.pages.empty()) tokens.push_back(worker.token);
    }
  }
  bool are_some_left = false;
  for (const std::string& token : tokens) {
    if (options_.worker_lives && options_.worker_lives(token)) {
      are_some_left = true;
      continue;
    }
    absl::MutexLock lock(&mutex_);
    for (const PageRun& pages : former_.TakePages(token)) here_.segments->Readmit(pages);
  }
  return are_some_left;
}

absl::StatusOr<Reservation> KvStore::Reserve(const std::string& token, uint64_t call_number,
                                             const ReserveRequest& request, bool compute_anyway) {
  TierBridge::ToPersist prepared;
  absl::StatusOr<Reservation> reservation;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(lease_.BeginCall(token, call_number, request.sequence_id));
    // A request with cached_only does not wait for what is read, but the next one finds it.
    if (bridge_ != nullptr && !compute_anyway) bridge_->StartRestore(here_, request);
    reservation = here_.segments->Reserve(request, compute_anyway);
    if (absl::IsResourceExhausted(reservation.status())) ++reservations_refused_;
    if (bridge_ != nullptr && reservation.ok()) {
      const auto cached =
          std::span<const ExtentRecord>(reservation->extents).first(reservation->num_cached);
      bridge_->Touch(cached);
      // What the disk had no time or no room for when it was committed.
      prepared = bridge_->Prepare(here_, cached, kept_);
    }
  }
  if (bridge_ != nullptr) bridge_->Submit(std::move(prepared));
  return reservation;
}

absl::StatusOr<std::vector<ExtentRecord>> KvStore::Commit(
    const std::string& token, uint64_t call_number, uint64_t sequence_id,
    std::span<const SegmentToCommit> segments) {
  SegmentsOfArena here;
  absl::StatusOr<std::vector<ImageToRead>> images;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(lease_.BeginCall(token, call_number, sequence_id));
    here = here_;
    images = here.segments->ImagesToCommit(sequence_id, segments);
  }
  ReadImages read;
  if (images.ok()) read = ReadImagesOf(*here.arena, here.segments->geometry(), *images);
  TierBridge::ToPersist prepared;
  absl::StatusOr<std::vector<ExtentRecord>> extents;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(lease_.CheckToken(token));
    const size_t before = here.segments->directory().num_committed();
    if (!images.ok()) extents = images.status();
    if (images.ok()) extents = here.segments->Commit(sequence_id, segments, std::move(read));
    if (!extents.ok()) {
      ++segments_refused_;
      spdlog::error("refused to commit segments of sequence {}: {}", sequence_id,
                    std::string(extents.status().message()));
      return extents;
    }
    segments_committed_ += here.segments->directory().num_committed() - before;
    if (bridge_ != nullptr) prepared = bridge_->Prepare(here, *extents, kept_);
  }
  if (bridge_ != nullptr) bridge_->Submit(std::move(prepared));
  return extents;
}

absl::StatusOr<uint64_t> KvStore::Release(const std::string& token, uint64_t call_number,
                                          uint64_t sequence_id) {
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(lease_.BeginCall(token, call_number, sequence_id));
  return here_.segments->Release(sequence_id);
}

absl::Status KvStore::Declare(const std::string& token, uint64_t index, const Declaration& part,
                              bool is_last) {
  SegmentsOfArena here;
  std::vector<ImageToRead> images;
  {
    absl::MutexLock lock(&mutex_);
    RETURN_IF_ERROR(lease_.BeginPart(token, index));
    here = here_;
    images = here.segments->ImagesToDeclare(part);
  }
  ReadImages read = ReadImagesOf(*here.arena, here.segments->geometry(), images);
  absl::MutexLock lock(&mutex_);
  RETURN_IF_ERROR(lease_.BeginPart(token, index));
  const absl::Status status = here.segments->Declare(part, std::move(read));
  if (!status.ok()) {
    lease_.RefuseDeclaration();
    here.segments->ReleaseAll();
    return status;
  }
  lease_.EndPart(is_last);
  if (!is_last) return status;
  const SegmentDirectory& directory = here.segments->directory();
  spdlog::info("worker {} declared {} sequences, {} extents, {} segments, {} of them named",
               lease_.attachment().pid, directory.num_sequences(), directory.num_extents(),
               directory.num_committed(), directory.num_named());
  return status;
}

std::vector<ExtentListing> KvStore::List(uint64_t after_extent_id, size_t limit) const {
  absl::MutexLock lock(&mutex_);
  std::vector<ExtentListing> listings;
  if (here_.segments == nullptr) return listings;
  const ArenaSegments& segments = *here_.segments;
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
  for (const auto& plane : ending_planes_) AddCounters(plane->stats(), &stats.data_plane);
  stats.workers_attached = workers_attached_;
  stats.adoptions = adoptions_;
  stats.segments_committed = segments_committed_;
  stats.segments_refused = segments_refused_;
  stats.reservations_refused = reservations_refused_;
  stats.arena_pages = here_.arena == nullptr ? 0 : here_.arena->num_pages();
  stats.free_pages = stats.largest_free_pages = stats.arena_pages;
  stats.prefix = ended_prefix_;
  if (bridge_ != nullptr) stats.durable_skipped = bridge_->num_skipped();
  if (here_.segments != nullptr) AddSegmentStats(*here_.segments, &stats);
  if (lease_.holder() != nullptr) AddHolderStats(*lease_.holder(), &stats);
  return stats;
}

std::optional<uint64_t> KvStore::data_plane_rounds() const {
  absl::MutexLock lock(&mutex_);
  if (lease_.holder() == nullptr) return std::nullopt;
  return lease_.holder()->plane->num_rounds();
}

}  // namespace retroinfer::kvstore
