// The calls that a StoreLink carries to the store.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/kv/named_segment.h"
#include "gpu_worker/store_link/extent_ledger.h"
#include "gpu_worker/store_link/store_link.h"
#include "retroinfer/kvstore/v1/kv_store.pb.h"

namespace retroinfer {

// A call of StoreLink that waits for its answer.
struct LinkOperation {
  enum class Kind { kReserve, kCommit, kRelease };

  Kind kind = Kind::kRelease;
  uint64_t sequence_id = 0;
  ReserveRequest request;                        // kReserve
  StoreLink::ReserveCallback on_reserved;        // kReserve
  absl::Time deadline = absl::InfiniteFuture();  // kReserve
  // kReserve: when it stops to mind that others compute the same, or that the disk is slow; set at
  // the first answer that they do.
  std::optional<absl::Time> progress_deadline;
  std::string waits_for;                   // kReserve: what that answer said
  std::vector<CommittedSegment> segments;  // kCommit
  StoreLink::DoneCallback on_committed;    // kCommit
};

// Ends a call with an error.
inline void Finish(LinkOperation& operation, const absl::Status& error) {
  if (operation.on_reserved) operation.on_reserved(error);
  if (operation.on_committed) operation.on_committed(error);
}

// Returns how long the store may work on a commit, by the bytes of its segments; 0 for other calls.
inline absl::Duration TimeOfCommit(const LinkOperation& commit, const ExtentLedger& ledger,
                                   const StoreLinkOptions& options) {
  uint64_t pages = 0;
  for (const CommittedSegment& segment : commit.segments) {
    const LedgerExtent* entry = ledger.Find(commit.sequence_id, segment.extent_id);
    if (entry != nullptr) pages += entry->extent.num_pages;
  }
  const auto bytes = static_cast<double>(pages * options.geometry.page_bytes());
  return absl::Seconds(bytes / static_cast<double>(options.commit_bytes_per_second));
}

// Returns how a worker introduces itself.
inline kvstore::v1::AttachWorkerRequest MakeAttachRequest(const StoreLinkOptions& options) {
  kvstore::v1::AttachWorkerRequest request;
  kvstore::v1::KvGeometry* geometry = request.mutable_geometry();
  geometry->set_num_layers(options.geometry.num_layers);
  geometry->set_num_kv_heads(options.geometry.num_kv_heads);
  geometry->set_head_dim(options.geometry.head_dim);
  geometry->set_kv_format(static_cast<uint32_t>(options.geometry.format.id));
  geometry->set_num_window_layers(options.geometry.num_window_layers);
  geometry->set_window_tokens(options.geometry.window_tokens);
  request.set_model_fingerprint(options.model_fingerprint);
  request.set_num_slots(options.num_slots);
  request.set_num_planes(options.num_planes);
  request.set_log_capacity(options.log_capacity);
  request.set_request_capacity(options.request_capacity);
  return request;
}

// Whether trying again may help: the store is away, starting, or has forgotten this worker.
inline bool IsLoss(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsPermissionDenied(status) ||
         absl::IsCancelled(status);
}

}  // namespace retroinfer
