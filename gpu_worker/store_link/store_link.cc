// The control thread owns the connection, the ledger and all callbacks; other threads only append
// to the queue. An operation leaves the queue when the store has answered it. One whose answer was
// lost is sent again: the store answers a repeated reservation or commit as it did the first time,
// and refuses calls that arrive after later ones, so that nothing happens twice or too late.
#include "gpu_worker/store_link/store_link.h"

#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/clock/steady_now.h"
#include "common/shm/unique_fd.h"
#include "common/status/errno_status.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"
#include "gpu_worker/store_link/declaration_parts.h"
#include "gpu_worker/store_link/extent_ledger.h"
#include "gpu_worker/store_link/link_operation.h"
#include "gpu_worker/store_link/store_client.h"
#include "gpu_worker/store_link/store_link_impl.h"

namespace retroinfer {
namespace {

namespace v1 = kvstore::v1;

// Of one step of attaching; a store that is gone ends it at once.
constexpr absl::Duration kAttachStep = absl::Seconds(30);
constexpr absl::Duration kWaitLineInterval = absl::Seconds(5);
constexpr absl::Duration kCallTimeout = absl::Seconds(30);
constexpr absl::Duration kDetachTimeout = absl::Seconds(1);
constexpr absl::Duration kBackoffMin = absl::Milliseconds(50);
constexpr absl::Duration kBackoffMax = absl::Milliseconds(250);
constexpr int kIdlePollMs = 1000;
// While reservations wait for other sequences.
constexpr absl::Duration kProgressPoll = absl::Seconds(1);
constexpr absl::Duration kPollPerRowToken = absl::Nanoseconds(250);
constexpr absl::Duration kRestorePoll = absl::Milliseconds(20);  // the store reads from the disk

// Calls `attempt`, with the time that it may take, until the store at `target` answers or `timeout`
// has passed.
absl::Status AwaitStore(const std::string& target, absl::Duration timeout,
                        absl::FunctionRef<absl::Status(absl::Duration)> attempt) {
  const absl::Time deadline = common::SteadyNow() + timeout;
  absl::Time next_line = absl::InfinitePast();
  while (true) {
    const absl::Duration left = std::max(deadline - common::SteadyNow(), absl::Milliseconds(100));
    const absl::Status status = attempt(std::min(left, kAttachStep));
    const bool retry = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
    if (!retry) return status;
    if (common::SteadyNow() >= deadline) {
      return absl::UnavailableError(
          absl::StrCat("no kv_store_service at ", target, " within ", absl::FormatDuration(timeout),
                       "; is it running? Last error: ", std::string(status.message())));
    }
    if (common::SteadyNow() >= next_line) {
      spdlog::info(
          "waiting for the kv_store_service at {}, for up to {}: {}", target,
          absl::FormatDuration(absl::Ceil(deadline - common::SteadyNow(), absl::Seconds(1))),
          std::string(status.message()));
      next_line = common::SteadyNow() + kWaitLineInterval;
    }
    absl::SleepFor(kBackoffMin);
  }
}

}  // namespace

StoreLink::Impl::~Impl() {
  stop_ = true;
  if (wake_.valid()) ::eventfd_write(wake_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

absl::Status StoreLink::Impl::Connect() {
  wake_.Reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return common::ErrnoStatus(errno, "creating an eventfd");
  RETURN_IF_ERROR(AwaitStore(
      options_.target, options_.attach_timeout, [this](absl::Duration left) -> absl::Status {
        client_ = std::make_unique<StoreClient>(options_.target, [this] { return Tick(); });
        ASSIGN_OR_RETURN(memory_, client_->Attach(MakeAttachRequest(options_), left));
        return absl::OkStatus();
      }));
  if (client_->store_writes_arena()) ledger_.StopRetaining();
  for (const common::SealedMemory& memory : memory_.data_planes) {
    ASSIGN_OR_RETURN(const DataPlane plane, DataPlane::Open(memory.bytes()));
    if (plane.num_slots() != options_.num_slots ||
        plane.arena_pages() != memory_.arena.bytes().size() / options_.geometry.page_bytes()) {
      return absl::DataLossError("the store's data plane does not fit the arena and the slots");
    }
    planes_.push_back(plane);
  }
  NoteAttached();
  thread_ = std::thread([this] { Loop(); });
  return absl::OkStatus();
}

void StoreLink::Impl::Enqueue(LinkOperation operation) {
  {
    absl::MutexLock lock(&mutex_);
    queue_.push_back(std::move(operation));
  }
  ::eventfd_write(wake_.get(), 1);
}

void StoreLink::Impl::SetReattachCallback(std::function<void()> callback) {
  absl::MutexLock lock(&callback_mutex_);
  on_reattach_ = std::move(callback);
}

size_t StoreLink::Impl::num_pending() const {
  absl::MutexLock lock(&mutex_);
  return queue_.size() + waiting_.size() + num_in_call_;
}

void StoreLink::Impl::Loop() {
  while (!stop_) {
    if (!attached_) {
      Reattach();
    } else if (!client_->LeaseIsAlive()) {
      Lose("the store closed the connection");
    } else if (ProcessFront() == Outcome::kStoreGone) {
      Lose("a call found the store gone");
    } else {
      WaitForWork();
      ResumeWaiting(/*all=*/false);
    }
  }
  client_->Detach(kDetachTimeout);
  ResumeWaiting(/*all=*/true);
  EndAll(absl::CancelledError("the link to the kv_store_service was closed"));
}

void StoreLink::Impl::WaitForWork() {
  {
    absl::MutexLock lock(&mutex_);
    if (!queue_.empty()) return;
  }
  const absl::Duration idle = absl::Milliseconds(kIdlePollMs);
  WaitFor(std::clamp(next_look_ - common::SteadyNow(), absl::Milliseconds(1), idle));
}

void StoreLink::Impl::WaitFor(absl::Duration duration) {
  pollfd polled[2] = {{wake_.get(), POLLIN, 0}, {client_->lease_fd(), POLLIN, 0}};
  ::poll(polled, 2, static_cast<int>(absl::ToInt64Milliseconds(duration)));
  eventfd_t ignored = 0;
  ::eventfd_read(wake_.get(), &ignored);
}

void StoreLink::Impl::Lose(const std::string& reason) {
  if (stop_) return;
  attached_ = false;
  backoff_ = kBackoffMin;
  ResumeWaiting(/*all=*/true);
  spdlog::warn("lost the kv_store_service: {}; running sequences go on, reconnecting", reason);
}

void StoreLink::Impl::GiveUpMemory() {
  ResumeWaiting(/*all=*/true);
  EndAll(absl::UnavailableError("another worker has taken the memory of this one; try again"));
  WaitFor(kBackoffMax);
  if (std::exchange(gave_up_, true)) return;
  spdlog::critical(
      "the kv_store_service has given the arena to another worker: what this one kept there is "
      "lost");
  if (options_.on_memory_taken) return options_.on_memory_taken();
  absl::SleepFor(absl::Seconds(1));  // for the last answers
  std::_Exit(EXIT_FAILURE);
}

void StoreLink::Impl::Reattach() {
  if (memory_taken()) return GiveUpMemory();
  ExpireReservations();
  client_ = std::make_unique<StoreClient>(options_.target, [this] { return Tick(); });
  const absl::Status status =
      client_->HandBack(MakeAttachRequest(options_), memory_, ledger_, kAttachStep);
  if (!status.ok()) {
    if (const auto suppressed = reattach_log_.Admit(common::SteadyNow()); suppressed && !stop_) {
      spdlog::warn("no kv_store_service yet: {} ({} attempts since the last message)",
                   std::string(status.message()), *suppressed + 1);
    }
    client_ = std::make_unique<StoreClient>(options_.target, [this] { return Tick(); });
    WaitFor(backoff_);
    backoff_ = std::min(2 * backoff_, kBackoffMax);
    return;
  }
  if (client_->store_writes_arena()) ledger_.StopRetaining();
  NoteAttached();
  ++num_reattached_;
  spdlog::info("attached to the kv_store_service again; it knows {} sequences",
               ledger_.sequences().size());
  absl::MutexLock lock(&callback_mutex_);
  if (on_reattach_) on_reattach_();
}

StoreLink::Impl::Outcome StoreLink::Impl::ProcessFront() {
  LinkOperation operation;
  {
    absl::MutexLock lock(&mutex_);
    if (queue_.empty()) return Outcome::kAnswered;
    operation = std::move(queue_.front());
    queue_.pop_front();
    num_in_call_ = 1;
    time_of_call_ = TimeOfCommit(operation, ledger_, options_);
  }
  const absl::Time begun = common::SteadyNow();
  const auto kind = operation.kind;
  const Outcome outcome = kind == LinkOperation::Kind::kReserve  ? ProcessReserve(operation)
                          : kind == LinkOperation::Kind::kCommit ? ProcessCommit(operation)
                                                                 : ProcessRelease(operation);
  EndCall(std::move(operation), outcome, common::SteadyNow() - begun);
  return outcome;
}

void StoreLink::Impl::EndCall(LinkOperation operation, Outcome outcome, absl::Duration took) {
  absl::MutexLock lock(&mutex_);
  num_in_call_ = 0;
  const absl::Duration waited = std::min(took, std::exchange(time_of_call_, absl::ZeroDuration()));
  for (LinkOperation& waiting : queue_) waiting.deadline += waited;
  if (outcome != Outcome::kAnswered) queue_.push_front(std::move(operation));
}

StoreLink::Impl::Outcome StoreLink::Impl::ProcessReserve(LinkOperation& operation) {
  const bool compute_anyway = operation.progress_deadline.has_value() &&
                              common::SteadyNow() >= *operation.progress_deadline;
  const absl::Duration left = operation.deadline - common::SteadyNow();
  auto extents = left > absl::ZeroDuration()
                     ? client_->Reserve(operation.request, compute_anyway, left)
                     : absl::DeadlineExceededError("waited too long");
  if (extents.ok()) {
    ledger_.Reserve(operation.request, *extents);
    operation.on_reserved(*std::move(extents));
    return Outcome::kAnswered;
  }
  if (IsLoss(extents.status())) return Outcome::kStoreGone;
  const auto reason = common::ReasonOf(extents.status());
  const bool is_others_turn =
      reason.reason == kSegmentInProgressReason || reason.reason == kWaitsForDiskReason;
  if (is_others_turn && operation.request.waits) {
    SetAside(std::move(operation), reason);
    return Outcome::kAnswered;
  }
  if (!absl::IsDeadlineExceeded(extents.status())) {
    operation.on_reserved(extents.status());
    return Outcome::kAnswered;
  }
  // The store may have granted it all the same, or do so when it wakes up: give it back.
  LinkOperation undo;
  undo.kind = LinkOperation::Kind::kRelease;
  undo.sequence_id = operation.sequence_id;
  {
    absl::MutexLock lock(&mutex_);
    queue_.push_front(std::move(undo));
  }
  operation.on_reserved(
      absl::UnavailableError(absl::StrCat("the kv_store_service did not answer within ",
                                          absl::FormatDuration(options_.reserve_timeout))));
  return Outcome::kAnswered;
}

StoreLink::Impl::Outcome StoreLink::Impl::ProcessCommit(LinkOperation& operation) {
  std::vector<v1::Segment> segments;
  for (const CommittedSegment& committed : operation.segments) {
    const LedgerExtent* entry = ledger_.Find(operation.sequence_id, committed.extent_id);
    if (entry == nullptr) {
      operation.on_committed(absl::NotFoundError(absl::StrCat(
          "sequence ", operation.sequence_id, " has no extent ", committed.extent_id)));
      return Outcome::kAnswered;
    }
    v1::Segment& segment = segments.emplace_back();
    segment.set_extent_id(committed.extent_id);
    segment.set_token_begin(committed.token_begin);
    segment.set_token_count(entry->extent.num_tokens);
    if (committed.identity.has_value()) ToProto(*committed.identity, segment.mutable_identity());
  }
  const auto extents = client_->Commit(operation.sequence_id, segments, kCallTimeout);
  if (IsLoss(extents.status())) return Outcome::kStoreGone;
  if (absl::IsDeadlineExceeded(extents.status())) return Outcome::kNoAnswer;
  if (extents.ok()) {
    for (size_t i = 0; i < segments.size(); ++i) {
      std::shared_ptr<const SegmentIdentity> identity;
      if ((*extents)[i].cached && operation.segments[i].identity.has_value()) {
        identity = std::make_shared<const SegmentIdentity>(*operation.segments[i].identity);
      }
      ledger_.Commit(operation.sequence_id, segments[i].extent_id(), segments[i].token_begin(),
                     (*extents)[i].num_pages, std::move(identity));
    }
  }
  operation.on_committed(extents.status());
  ResumeWaiting(/*all=*/true);
  return Outcome::kAnswered;
}

StoreLink::Impl::Outcome StoreLink::Impl::ProcessRelease(LinkOperation& operation) {
  CancelWaiting(operation.sequence_id);
  const absl::Status status = client_->Release(operation.sequence_id, kCallTimeout);
  if (IsLoss(status)) return Outcome::kStoreGone;
  if (absl::IsDeadlineExceeded(status)) return Outcome::kNoAnswer;
  if (!status.ok()) {
    spdlog::error("releasing sequence {}: {}", operation.sequence_id,
                  std::string(status.message()));
  }
  ledger_.Release(operation.sequence_id);
  ResumeWaiting(/*all=*/true);
  return Outcome::kAnswered;
}

void StoreLink::Impl::SetAside(LinkOperation operation, const common::ErrorReason& reason) {
  const absl::Time now = common::SteadyNow();
  const bool on_disk = reason.reason == kWaitsForDiskReason;
  absl::Duration poll = on_disk ? kRestorePoll : kProgressPoll;
  if (operation.request.rows.has_value()) {
    // To ask for many rows takes both sides a while.
    poll += kPollPerRowToken * static_cast<int64_t>(operation.request.rows->token_ids.size());
  }
  const auto value_of = [&reason](const char* key) {
    const auto found = reason.metadata.find(key);
    return found == reason.metadata.end() ? std::string() : found->second;
  };
  // Each segment that the disk gives back earns another wait, and so does room that comes; without
  // that room there is nothing to do but to wait.
  const std::string segment = value_of("segment");
  const bool is_read = on_disk && !segment.empty();
  const std::string waits_for =
      absl::StrCat(reason.reason, on_disk ? absl::StrCat(segment, " ", value_of("progress")) : "");
  if (!operation.progress_deadline.has_value() || operation.waits_for != waits_for) {
    operation.progress_deadline =
        now + (is_read ? options_.disk_timeout : options_.progress_timeout);
    operation.waits_for = waits_for;
  }
  next_look_ = std::min({next_look_, now + poll, *operation.progress_deadline});
  absl::MutexLock lock(&mutex_);
  waiting_.push_back(std::move(operation));
}

// Whoever computes segments is a sequence of this link, so that every commit and release, and with
// them everything worth waiting for, passes here; the timed look is for the deadlines and for
// segments that the store reads back from the disk.
void StoreLink::Impl::ResumeWaiting(bool all) {
  const absl::Time now = common::SteadyNow();
  if (!all && now < next_look_) return;
  next_look_ = absl::InfiniteFuture();
  absl::MutexLock lock(&mutex_);
  while (!waiting_.empty()) {
    LinkOperation operation = std::move(waiting_.back());
    waiting_.pop_back();
    operation.deadline = now + options_.reserve_timeout;
    queue_.push_front(std::move(operation));
  }
}

void StoreLink::Impl::CancelWaiting(uint64_t sequence_id) {
  std::vector<LinkOperation> cancelled;
  {
    absl::MutexLock lock(&mutex_);
    for (auto operation = waiting_.begin(); operation != waiting_.end();) {
      if (operation->sequence_id != sequence_id) {
        ++operation;
        continue;
      }
      cancelled.push_back(std::move(*operation));
      operation = waiting_.erase(operation);
    }
  }
  for (LinkOperation& operation : cancelled) {
    Finish(operation, absl::CancelledError(absl::StrCat("sequence ", sequence_id,
                                                        " was released before it was reserved")));
  }
}

void StoreLink::Impl::ExpireReservations() {
  std::vector<LinkOperation> expired;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Time now = common::SteadyNow();
    for (auto operation = queue_.begin(); operation != queue_.end();) {
      if (operation->deadline + time_of_call_ > now) {
        ++operation;
        continue;
      }
      expired.push_back(std::move(*operation));
      operation = queue_.erase(operation);
    }
  }
  for (LinkOperation& operation : expired) {
    Finish(operation,
           absl::UnavailableError(absl::StrCat("the kv_store_service did not answer within ",
                                               absl::FormatDuration(options_.reserve_timeout))));
  }
}

bool StoreLink::Impl::Tick() {
  ExpireReservations();
  if (stop_) return false;
  // A dead store ends the call at once; without a lease the call is part of attaching.
  return client_->lease_fd() < 0 || client_->LeaseIsAlive();
}

void StoreLink::Impl::EndAll(const absl::Status& error) {
  while (true) {
    LinkOperation operation;
    {
      absl::MutexLock lock(&mutex_);
      if (queue_.empty()) return;
      operation = std::move(queue_.front());
      queue_.pop_front();
    }
    Finish(operation, error);
  }
}

StoreLink::StoreLink(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StoreLink::~StoreLink() = default;

absl::StatusOr<uint32_t> StoreLink::AwaitArena(const std::string& target, absl::Duration timeout) {
  uint32_t num_pages = 0;
  RETURN_IF_ERROR(AwaitStore(target, timeout, [&](absl::Duration left) -> absl::Status {
    StoreClient client(target, [] { return true; });
    ASSIGN_OR_RETURN(num_pages, client.ArenaPages(left));
    return absl::OkStatus();
  }));
  return num_pages;
}

absl::StatusOr<std::unique_ptr<StoreLink>> StoreLink::Connect(StoreLinkOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  RETURN_IF_ERROR(impl->Connect());
  return std::unique_ptr<StoreLink>(new StoreLink(std::move(impl)));
}

void StoreLink::SetReattachCallback(std::function<void()> on_reattach) {
  impl_->SetReattachCallback(std::move(on_reattach));
}

StoreLink::State StoreLink::state() const {
  return impl_->attached() ? State::kAttached : State::kLost;
}

bool StoreLink::memory_taken() const { return impl_->memory_taken(); }

std::span<std::byte> StoreLink::arena() const { return impl_->arena(); }

uint32_t StoreLink::arena_pages() const {
  return static_cast<uint32_t>(impl_->data_plane(0).arena_pages());
}

DataPlane& StoreLink::data_plane(uint32_t rank) { return impl_->data_plane(rank); }
int StoreLink::arena_fd() const { return impl_->arena_fd(); }
int StoreLink::plane_fd(uint32_t rank) const { return impl_->plane_fd(rank); }

void StoreLink::Reserve(ReserveRequest request, ReserveCallback callback) {
  LinkOperation operation;
  operation.kind = LinkOperation::Kind::kReserve;
  operation.sequence_id = request.sequence_id;
  operation.request = std::move(request);
  operation.on_reserved = std::move(callback);
  operation.deadline = common::SteadyNow() + impl_->options().reserve_timeout;
  impl_->Enqueue(std::move(operation));
}

void StoreLink::Commit(uint64_t sequence_id, std::vector<CommittedSegment> segments,
                       DoneCallback callback) {
  LinkOperation operation;
  operation.kind = LinkOperation::Kind::kCommit;
  operation.sequence_id = sequence_id;
  operation.segments = std::move(segments);
  operation.on_committed = std::move(callback);
  impl_->Enqueue(std::move(operation));
}

void StoreLink::Release(uint64_t sequence_id) {
  LinkOperation operation;
  operation.kind = LinkOperation::Kind::kRelease;
  operation.sequence_id = sequence_id;
  impl_->Enqueue(std::move(operation));
}

void StoreLink::FetchParts(std::vector<PartsOfExtent> wanted, PartsCallback callback) {
  impl_->FetchParts(wanted, std::move(callback));
}

size_t StoreLink::num_pending() const { return impl_->num_pending(); }
uint64_t StoreLink::num_reattached() const { return impl_->num_reattached(); }

}  // namespace retroinfer
