// The worker's side of the control plane: attaches to the kv_store_service, maps the shared memory,
// and reserves, commits and releases extents of the arena. All the engine needs to know of the
// store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/kv/extent.h"
#include "common/kv/kv_geometry.h"
#include "common/kv/named_segment.h"
#include "common/shm/data_plane.h"

namespace retroinfer {

struct StoreLinkOptions {
  static constexpr absl::Duration kAttachTimeout = absl::Seconds(30);

  std::string target;  // gRPC target of the store, for example "unix:/run/retroinfer/kv_store.sock"
  KvGeometry geometry;
  std::string model_fingerprint;  // 1 to 64 bytes: hash of everything that changes KV bytes
  uint32_t num_slots = 0;         // of the block cache
  // Entries, powers of two from 64. After a restart of the store the engine logs kReset and one
  // kAdmit per resident page: a log of at least num_slots + 1 entries takes that in one go.
  uint32_t log_capacity = 1 << 16;
  uint32_t request_capacity = 1 << 14;
  // Data planes, one for each rank of the worker; slots and capacities are those of each.
  uint32_t num_planes = 1;

  absl::Duration attach_timeout = kAttachTimeout;     // of Connect(); the store may be starting
  absl::Duration reserve_timeout = absl::Seconds(3);  // without a store: UNAVAILABLE after this
  // How fast a slow store reads segments that are committed. A reservation behind a commit waits
  // that much longer: a million tokens of a 70B model are 240 GiB.
  int64_t commit_bytes_per_second = int64_t{4} << 30;
  // A reservation waits this long for segments that another sequence computes; then it computes
  // them too. And for room that writes to the disk, or a former worker, keep, as long as none
  // comes; then it is refused.
  absl::Duration progress_timeout = absl::Minutes(10);
  // The same for each segment that the store reads back from the disk.
  absl::Duration disk_timeout = absl::Seconds(10);

  // Called once, on the control thread, when memory_taken() has become true: nothing that this
  // process keeps in the arena is right any more and no store will take it back. By default the
  // process ends a second later, for its supervisor to start it again.
  std::function<void()> on_memory_taken;
};

// Keeps one worker attached to the store.
//
// Threads: all methods on any thread; none blocks but Connect() and the destructor. Callbacks run
//          one at a time on the link's control thread: they must be short, may call any method, and
//          must not destroy the link.
// Owns:    the mappings of arena and data planes, which keep their addresses and contents for the
//          life of the link, also while the store is gone; one thread; the lease.
//
// Without a store: state() is kLost; commits and releases wait in order and are sent after the
// re-attach; reservations wait at most reserve_timeout (behind a commit: and what the commit
// may take) and then fail with UNAVAILABLE. The link
// reconnects by itself, hands the memory back to the new store and tells it every live extent.
class StoreLink {
 public:
  enum class State { kAttached, kLost };

  using ReserveCallback = std::function<void(absl::StatusOr<std::vector<Extent>>)>;
  using DoneCallback = std::function<void(absl::Status)>;

  // Returns how many pages the arena of the store at `target` has, without attaching: num_slots may
  // depend on that. Another store may be there when Connect() is called: compare arena_pages().
  //
  // Returns: UNAVAILABLE no store that has its arena within `timeout`.
  static absl::StatusOr<uint32_t> AwaitArena(const std::string& target, absl::Duration timeout);

  // Attaches and maps the memory.
  //
  // Returns: FAILED_PRECONDITION another worker is attached; INVALID_ARGUMENT the store refuses the
  //          geometry or sizes; UNAVAILABLE no store within attach_timeout (the message says what
  //          was tried); DATA_LOSS what was received is not the sealed memory that was announced.
  static absl::StatusOr<std::unique_ptr<StoreLink>> Connect(StoreLinkOptions options);

  // Ends the lease: the store frees everything. Pending callbacks get CANCELLED.
  ~StoreLink();
  StoreLink(const StoreLink&) = delete;
  StoreLink& operator=(const StoreLink&) = delete;

  // Runs `on_reattach` on the control thread each time a new store has adopted the memory and knows
  // all extents. It ignores the log of each rank until a kReset: each must, at its next step
  // boundary, log kReset and then kAdmit for each resident page. Replaces the callback set before;
  // nullptr: none. Returns after a run of the earlier one has ended, so it must not be called by a
  // callback.
  void SetReattachCallback(std::function<void()> on_reattach);

  State state() const;

  // Whether the store gave the arena to another worker while this one had no lease. What was read
  // from it before a call that returns false was right. Cost: one load.
  bool memory_taken() const;

  // Arena, constant for the life of the link. Page `p` begins at arena()[p *
  // geometry.page_bytes()].
  std::span<std::byte> arena() const;
  uint32_t arena_pages() const;
  // Rings and stamps of a rank, which is the log's producer and the requests' consumer: in this
  // process, or in the one that maps plane_fd(). REQUIRES: rank < num_planes; so for the others.
  DataPlane& data_plane(uint32_t rank = 0);
  // Sealed memory (common/shm/sealed_memory.h) for the processes of other ranks. Constant for the
  // life of the link, which owns the descriptors.
  int arena_fd() const;
  int plane_fd(uint32_t rank) const;

  // Takes one extent for each wanted segment: all or nothing, once per sequence. Leading named ones
  // that are committed come back with Extent::cached; see ReserveExtents in kv_store.proto.
  //
  // Callback: the extents in the order of the request (with cached_only: the cached ones);
  //           RESOURCE_EXHAUSTED the arena has no room now (the message has the numbers);
  //           UNAVAILABLE no answer within reserve_timeout; CANCELLED by Release(). After an error
  //           the sequence holds nothing. The answer waits, without holding other calls up, while
  //           another sequence computes the next named segment, at most progress_timeout. With
  //           ReserveRequest::rows: the cached extents that hold them.
  void Reserve(ReserveRequest request, ReserveCallback callback);

  // Makes segments immutable. Their extents must not be written afterwards, and pages of an extent
  // behind SegmentHeader::used_pages must not be used any more.
  //
  // Callback: OK once the store has checked and recorded them; INVALID_ARGUMENT if it refuses an
  //           image (nothing is committed then). Waits while the store is away.
  void Commit(uint64_t sequence_id, std::vector<CommittedSegment> segments, DoneCallback callback);

  // Gives up everything the sequence holds or waits for; its named segments stay in the arena until
  // their room is needed. The engine must have logged kRelease (or kEvict) for its
  // resident pages and must not read its extents afterwards. Releasing an unknown sequence does
  // nothing. Waits while the store is away; later Reserve() calls may still find the arena full.
  void Release(uint64_t sequence_id);

  // Waits for parts of segments that Reserve() gave with Extent::part_bytes; see FetchParts in
  // kv_store.proto. The callback, on a thread of gRPC, gets what the store says; UNAVAILABLE
  // without a store. It may come before the call returns.
  using PartsCallback = std::function<void(absl::StatusOr<std::vector<uint32_t>>)>;
  void FetchParts(std::vector<PartsOfExtent> wanted, PartsCallback callback);

  // Number of calls that wait for the store or for another sequence; for metrics and tests.
  size_t num_pending() const;
  // Times that a store was found again; for metrics.
  uint64_t num_reattached() const;

 private:
  class Impl;
  explicit StoreLink(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace retroinfer
