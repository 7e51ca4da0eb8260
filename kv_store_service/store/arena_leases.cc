#include "kv_store_service/store/arena_leases.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
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
  spdlog::info("worker {} attached{}: {} layers, {} KV heads, head_dim {}, {}; {} slots{}", pid,
               parameters.hand_back ? " and handed its memory back" : "",
               parameters.geometry.num_layers, parameters.geometry.num_kv_heads,
               parameters.geometry.head_dim, std::string(parameters.geometry.format.name),
               parameters.num_slots,
               parameters.num_planes == 1
                   ? ""
                   : absl::StrCat(" in each of ", parameters.num_planes, " data planes"));
}

}  // namespace

ArenaLeases::Adoption ArenaLeases::PollAdoption(absl::Time deadline) {
  std::optional<StateNote> note;
  {
    absl::MutexLock lock(&state_.mutex);
    if (state_.lease.is_ready()) return Adoption::kAdopted;
    note = state_.lease.awaited();
  }
  if (common::SteadyNow() < deadline && state_file_.HolderLives(*note)) return Adoption::kPending;
  {
    absl::MutexLock lock(&state_.mutex);
    if (state_.lease.is_ready()) return Adoption::kAdopted;
    if (state_.lease.has_attachment()) return Adoption::kPending;
    state_.lease.GiveUpAdoption();
  }
  NoteLease();
  return Adoption::kGivenUp;
}

void ArenaLeases::SetArena(common::SealedMemory memory) {
  auto arena = std::make_shared<const Arena>(std::move(memory));
  Ending ending;
  {
    absl::MutexLock lock(&state_.mutex);
    RI_CHECK(state_.lease.is_starting());
    Replace(std::move(arena), nullptr, &ending);
    state_.lease.SetReady();
  }
  Finish(std::move(ending));
}

absl::StatusOr<AttachResult> ArenaLeases::Attach(const AttachParameters& parameters) {
  Attachment attachment;
  ASSIGN_OR_RETURN(attachment.token, NewAttachToken());
  attachment.parameters = parameters;
  AttachResult result;
  result.store_writes_arena = state_.bridge != nullptr;
  result.token = attachment.token;
  std::optional<Attachment> before;  // destroyed without the lock
  absl::MutexLock one_at_a_time(&attach_mutex_);
  ArenaRef arena;
  {
    absl::MutexLock lock(&state_.mutex);
    RETURN_IF_ERROR(state_.lease.CheckAttach(parameters));
    arena = state_.current.arena;
  }
  if (!parameters.hand_back) {
    ASSIGN_OR_RETURN(attachment.planes,
                     WorkerPlanes::Make(parameters.plane_sizes(), arena->num_pages(),
                                        options_.watermarks, options_.make_plane_memory));
    result.arena_bytes = arena->num_bytes();
    result.data_plane_bytes = attachment.planes->num_bytes();
  }
  attachment.claim_deadline = common::SteadyNow() + options_.attach_timeout;
  absl::MutexLock lock(&state_.mutex);
  RETURN_IF_ERROR(state_.lease.CheckAttach(parameters));
  if (arena != state_.current.arena) {
    return absl::UnavailableError("another worker has changed the arena meanwhile; try again");
  }
  before = state_.lease.Begin(std::move(attachment));
  return result;
}

absl::Status ArenaLeases::Detach(const std::string& token) {
  Ending ending;
  {
    absl::MutexLock lock(&state_.mutex);
    RETURN_IF_ERROR(state_.lease.CheckToken(token));
    EndAttachment("it detached", /*is_gone=*/true, &ending);
  }
  Finish(std::move(ending));
  return absl::OkStatus();
}

absl::StatusOr<MemoryDescriptors> ArenaLeases::ClaimDescriptors(const std::string& token,
                                                                pid_t pid) {
  MemoryDescriptors memory;
  Ending ending;
  {
    absl::MutexLock lock(&state_.mutex);
    RETURN_IF_ERROR(state_.lease.CheckClaim(token, /*hand_back=*/false));
    if (state_.current.segments != nullptr &&
        !(state_.current.segments->geometry() == state_.lease.attachment().parameters.geometry)) {
      RETURN_IF_ERROR(AwaitNoDiskWork());
      RETURN_IF_ERROR(state_.lease.CheckClaim(token, /*hand_back=*/false));
    }
    ASSIGN_OR_RETURN(memory.arena, Duplicate(state_.current.arena->fd()));
    const std::shared_ptr<WorkerPlanes> planes = state_.lease.attachment().planes;
    for (size_t rank = 0; rank < planes->size(); ++rank) {
      ASSIGN_OR_RETURN(memory.data_planes.emplace_back(), Duplicate(planes->fd(rank)));
    }
    RETURN_IF_ERROR(planes->Start());
    ending.planes = expired_.NotifyArenaTaken();
    StartLease(planes, pid, &ending);
  }
  Finish(std::move(ending));
  return memory;
}

absl::Status ArenaLeases::HandBack(const std::string& token, pid_t pid,
                                   MemoryDescriptors descriptors) {
  AttachParameters declared;
  {
    absl::MutexLock lock(&state_.mutex);
    RETURN_IF_ERROR(state_.lease.CheckClaim(token, /*hand_back=*/true));
    declared = state_.lease.attachment().parameters;
  }
  auto memory =
      AdoptHandedBackMemory(std::move(descriptors.arena), std::move(descriptors.data_planes),
                            declared, options_.handed_back_bytes_max, options_.watermarks);
  absl::Status status = memory.status();
  Ending ending;
  {
    absl::MutexLock lock(&state_.mutex);
    if (status.ok()) status = CheckHandedBack(token, *memory->arena);
    if (absl::IsUnavailable(status)) return status;
    RETURN_IF_ERROR(state_.lease.CheckClaim(token, /*hand_back=*/true));
    if (status.ok() && (status = memory->planes->Start()).ok()) {
      Replace(std::move(memory->arena), nullptr, &ending);
      state_.lease.SetReady();
      ++adoptions_;
      StartLease(std::move(memory->planes), pid, &ending);
    } else {
      EndAttachment(std::string(status.message()), /*is_gone=*/true, &ending);
    }
  }
  Finish(std::move(ending));
  return status;
}

absl::Status ArenaLeases::CheckHandedBack(const std::string& token, const Arena& arena) {
  if (state_.current.arena != nullptr && arena.IsSameMemory(*state_.current.arena)) {
    RETURN_IF_ERROR(AwaitNoDiskWork());
  }
  RETURN_IF_ERROR(state_.lease.CheckClaim(token, /*hand_back=*/true));
  if (!state_.lease.awaited().has_value() ||
      state_.lease.awaited()->arena_bytes == arena.num_bytes()) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("the arena that was handed back has ",
                                                 arena.num_bytes(), " bytes, needs ",
                                                 state_.lease.awaited()->arena_bytes));
}

absl::Status ArenaLeases::AwaitNoDiskWork() {
  if (state_.bridge == nullptr) return absl::OkStatus();
  // Deferred writes would begin while this waits, and prolong the wait.
  state_.bridge->DropDeferred();
  const absl::Condition idle(state_.bridge, &TierBridge::is_idle);
  if (state_.mutex.AwaitWithTimeout(idle, options_.disk_drain_timeout)) return absl::OkStatus();
  return absl::UnavailableError("segments of the worker before are still written to the disk");
}

void ArenaLeases::StartLease(std::shared_ptr<WorkerPlanes> planes, pid_t pid, Ending* ending) {
  const AttachParameters& parameters = state_.lease.attachment().parameters;
  if (state_.current.segments == nullptr ||
      !(state_.current.segments->geometry() == parameters.geometry)) {
    auto segments =
        std::make_shared<ArenaSegments>(state_.current.arena->num_pages(), parameters.geometry);
    segments->SetPinnedNames(&state_.pins.pinned());
    Replace(nullptr, std::move(segments), ending);
  }
  state_.current.fingerprint = parameters.model_fingerprint;
  state_.current.segments->SetFingerprint(common::FingerprintHash(state_.current.fingerprint));
  state_.lease.Start(pid, std::move(planes));
  ++workers_attached_;
  LogAttached(parameters, pid);
}

void ArenaLeases::Replace(ArenaRef arena, std::shared_ptr<ArenaSegments> segments, Ending* ending) {
  if (arena != nullptr) {
    // The lease of a worker that hands the same memory back is not expired any more; those of
    // workers before it are. In other memory nobody has anything to write to.
    const bool is_same =
        state_.current.arena != nullptr && arena->IsSameMemory(*state_.current.arena);
    ending->leases = is_same ? expired_.TakeHandedBack() : expired_.TakeAll();
    ending->memory.push_back({std::exchange(state_.current.arena, std::move(arena)), nullptr, ""});
  }
  if (state_.current.segments != nullptr) {
    AddCounters(state_.current.segments->counters(), &ended_prefix_);
  }
  ending->memory.push_back(
      {nullptr, std::exchange(state_.current.segments, std::move(segments)), ""});
  if (state_.current.segments == nullptr) return;
  for (const ExpiredLease& lease : expired_.leases()) {
    for (const PageRun& pages : lease.pages) state_.current.segments->Withhold(pages);
  }
}

void ArenaLeases::EndLease(const std::string& token, const std::string& reason) {
  Ending ending;
  {
    absl::MutexLock lock(&state_.mutex);
    if (!state_.lease.CheckToken(token).ok()) return;
    EndAttachment(reason, /*is_gone=*/false, &ending);
  }
  Finish(std::move(ending));
  ReadmitExpiredPages();
}

bool ArenaLeases::Tend(absl::Time now) {
  Ending ending;
  {
    absl::MutexLock lock(&state_.mutex);
    if (state_.lease.IsLate(now)) {
      EndAttachment("it did not connect to the descriptor socket in time", /*is_gone=*/true,
                    &ending);
    }
  }
  if (!ending.planes.empty()) Finish(std::move(ending));
  return ReadmitExpiredPages();
}

void ArenaLeases::EndAttachment(const std::string& reason, bool is_gone, Ending* ending) {
  const bool was_leased = state_.lease.holder() != nullptr;
  Attachment attachment = state_.lease.End();
  ending->planes.push_back(attachment.planes);
  if (!was_leased) {
    spdlog::warn("an attachment was given up: {}", reason);
    return;
  }
  ending_planes_.push_back(attachment.planes);
  const SegmentDirectory& directory = state_.current.segments->directory();
  const size_t num_sequences = directory.num_sequences();
  ExpiredLease expired{attachment.token, attachment.planes, {}};
  const uint64_t freed = state_.current.segments->ReleaseAll(is_gone ? nullptr : &expired.pages);
  expired_.Add(std::move(expired));
  spdlog::info(
      "worker {} is gone ({}): freed {} sequences, {} pages; {} named segments in {} pages stay",
      attachment.pid, reason, num_sequences, freed, directory.num_named(), directory.named_pages());
}

void ArenaLeases::Finish(Ending ending) {
  for (const std::shared_ptr<WorkerPlanes>& planes : ending.planes) {
    if (planes == nullptr) continue;
    planes->Stop();
    absl::MutexLock lock(&state_.mutex);
    if (std::erase(ending_planes_, planes) > 0) AddCounters(*planes, &ended_planes_);
  }
  NoteLease();
}

void ArenaLeases::NoteLease() {
  absl::MutexLock one_at_a_time(&note_mutex_);
  std::optional<StateNote> note;
  {
    absl::MutexLock lock(&state_.mutex);
    if (state_.lease.awaited().has_value()) return;  // the note is of an earlier process
    if (const Attachment* holder = state_.lease.holder()) {
      note = StateNote{holder->pid, state_.current.arena->num_bytes(), holder->parameters.geometry,
                       holder->parameters.model_fingerprint};
    }
  }
  if (!note.has_value()) return state_file_.Remove();
  const absl::Status noted = state_file_.Write(*note);
  if (noted.ok()) return;
  spdlog::error("a restarted store will not know of this worker: {}", std::string(noted.message()));
}

bool ArenaLeases::ReadmitExpiredPages() {
  std::vector<std::string> tokens;
  {
    absl::MutexLock lock(&state_.mutex);
    for (const ExpiredLease& lease : expired_.leases()) {
      if (!lease.pages.empty()) tokens.push_back(lease.token);
    }
  }
  bool are_some_left = false;
  for (const std::string& token : tokens) {
    if (options_.worker_lives && options_.worker_lives(token)) {
      are_some_left = true;
      continue;
    }
    absl::MutexLock lock(&state_.mutex);
    for (const PageRun& pages : expired_.TakePages(token)) state_.current.segments->Readmit(pages);
  }
  return are_some_left;
}

std::optional<std::vector<uint64_t>> ArenaLeases::data_plane_rounds() const {
  absl::MutexLock lock(&state_.mutex);
  if (state_.lease.holder() == nullptr) return std::nullopt;
  return state_.lease.holder()->planes->num_rounds();
}

void ArenaLeases::AddStats(StoreStats* stats) const {
  state_.mutex.AssertHeld();
  stats->data_plane = ended_planes_;
  for (const auto& planes : ending_planes_) AddCounters(*planes, &stats->data_plane);
  stats->workers_attached = workers_attached_;
  stats->adoptions = adoptions_;
  stats->prefix = ended_prefix_;
  if (state_.lease.holder() != nullptr) AddHolderStats(*state_.lease.holder(), stats);
}

}  // namespace retroinfer::kvstore
