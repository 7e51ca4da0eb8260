// Which pages of the arena are not there yet, and which of them a step came to. The host says
// before a step, and look-ups afterwards (ops/block_cache/absent_pages_view.h).
//
// While no page is absent nothing is copied, and look-ups read nothing of it.
//
// Threads: the engine's.
// Owns:    the account in host and device memory.
#pragma once

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/kv/kv_geometry.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/ops/block_cache/absent_pages_view.h"

namespace retroinfer {

class AbsentPages {
 public:
  static constexpr size_t kMaxRows = 4096;       // of a step
  static constexpr size_t kMaxAsked = 1u << 19;  // in a step

  static absl::StatusOr<AbsentPages> Create(Device& device, Stream& stream, uint64_t arena_pages);
  // Of device memory.
  static size_t Bytes(uint64_t arena_pages);

  // Pages [first, first + count) are absent, or there, from the next step on.
  void Mark(PageId first, uint32_t count) { Set(first, count, true); }
  void Clear(PageId first, uint32_t count) { Set(first, count, false); }
  bool any() const { return num_absent_ > 0; }
  bool is_absent(PageId page) const;

  // Before a step: copies the account to the device, if any page is absent or has been.
  absl::Status BeginStep(Stream& stream);
  // Behind it: copies back which rows came to absent pages. Does nothing if there were none.
  absl::Status EndStep(Stream& stream);
  // Whether a row of the last step came to an absent page. REQUIRES: the stream has passed
  // EndStep().
  bool Lacked(size_t row) const;
  // Returns the absent pages that the last step came to, each once, as many as there was room for;
  // waits for the copy of them. Valid until the next call. REQUIRES: as Lacked().
  absl::StatusOr<std::span<const PageId>> TakeAsked(Stream& stream);

  AbsentPagesView view() const;

 private:
  // The head of the results, which are copied back together.
  struct Results {
    uint32_t num_asked;
    uint32_t rows[kMaxRows];
  };

  explicit AbsentPages(Device& device) : device_(&device) {}
  void Set(PageId first, uint32_t count, bool is_absent);
  bool Wrote() const { return begun_ && num_absent_at_begin_ > 0; }

  Device* device_;
  DeviceBuffer words_;
  DeviceBuffer results_;
  DeviceBuffer asked_;
  HostBuffer host_words_;    // AbsentWord; asked is 0
  HostBuffer host_results_;  // Results
  HostBuffer host_asked_;
  HostBuffer zeros_;  // Results
  uint64_t num_absent_ = 0;
  uint64_t num_absent_at_begin_ = 0;  // of the last step
  bool begun_ = false;
  // Words that may have absent pages, here or on the device.
  size_t first_word_ = 0, end_word_ = 0;
};

}  // namespace retroinfer
