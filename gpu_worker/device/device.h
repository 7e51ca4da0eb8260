// Memory, streams and events of the processor that runs the model: one interface for every backend.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/device_span.h"

namespace retroinfer {

class Device;

// What memory is for; the start-up report and the metrics split it this way.
enum class MemoryPurpose : int {
  kWeights,
  kActivations,
  kDenseKv,     // steady zones, and whole contexts of policy `full`
  kMetaIndex,   // centroids and value sums
  kBlockCache,  // slots, page table
  kCount,
};
std::string_view MemoryPurposeName(MemoryPurpose purpose);

// Owns one allocation of device memory; frees it when destroyed.
//
// Threads: as a unique_ptr. Must not outlive its Device.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(Device* device, std::byte* data, size_t bytes, MemoryPurpose purpose)
      : device_(device), data_(data), bytes_(bytes), purpose_(purpose) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  size_t size_bytes() const { return bytes_; }
  DeviceSpan<std::byte> bytes() const { return {data_, bytes_}; }
  // The buffer as elements of T; a remainder of bytes is left out.
  template <typename T>
  DeviceSpan<T> as() const {
    return {reinterpret_cast<T*>(data_), bytes_ / sizeof(T)};
  }

 private:
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  MemoryPurpose purpose_ = MemoryPurpose::kActivations;
};

// Owns memory of the host that the device copies from and to without a stop: page-locked where the
// device needs that. Freed when destroyed; no copy may be under way then.
//
// Threads: as a unique_ptr. Must not outlive its Device.
class HostBuffer {
 public:
  HostBuffer() = default;
  HostBuffer(Device* device, std::byte* data, size_t bytes)
      : device_(device), data_(data), bytes_(bytes) {}
  HostBuffer(HostBuffer&& other) noexcept { *this = std::move(other); }
  HostBuffer& operator=(HostBuffer&& other) noexcept;
  ~HostBuffer();

  size_t size_bytes() const { return bytes_; }
  std::span<std::byte> bytes() const { return {data_, bytes_}; }
  // The buffer as elements of T; a remainder of bytes is left out.
  template <typename T>
  std::span<T> as() const {
    return {reinterpret_cast<T*>(data_), bytes_ / sizeof(T)};
  }

 private:
  Device* device_ = nullptr;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

// A point in a stream's work that other streams and the host can wait for.
class Event {
 public:
  virtual ~Event() = default;
};

// An in-order queue of device work. Work of different streams may run at the same time.
//
// Threads: one thread enqueues on a stream at a time.
class Stream {
 public:
  virtual ~Stream() = default;
  // Marks the work enqueued so far.
  virtual absl::Status Record(Event& event) = 0;
  // Makes later work of this stream wait for what `event` marked. The host does not wait.
  virtual absl::Status Wait(const Event& event) = 0;
  // Blocks the host until all enqueued work is done. Never called inside a decode step.
  virtual absl::Status Synchronize() = 0;
  // Whether somebody waits for a background stream: where it otherwise steps back for other work,
  // it does not from its next piece of work on. Any thread.
  virtual void SetUrgent(bool /*urgent*/) {}
};

// Recorded work, ready to be enqueued again as one piece.
class Graph {
 public:
  virtual ~Graph() = default;
};

enum class StreamKind {
  kCompute,     // the engine's own work
  kBackground,  // index construction and copies beside it
};

struct DeviceInfo {
  std::string name;         // as the hardware says it
  std::string backend;      // "cpu" or "cuda"
  size_t memory_bytes = 0;  // in all
  int num_processors = 0;   // cores or multiprocessors
};

// Threads: all methods may be called from any thread.
class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;

  // Returns `bytes` of uninitialised memory, aligned to 256 bytes. RESOURCE_EXHAUSTED says how much
  // was asked for, by whom, and how much there is.
  virtual absl::StatusOr<DeviceBuffer> Allocate(size_t bytes, MemoryPurpose purpose) = 0;
  // Returns `bytes` of host memory, zeroed, aligned to 256 bytes. May be slow: not for a decode
  // step.
  virtual absl::StatusOr<HostBuffer> AllocateHost(size_t bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream(StreamKind kind) = 0;
  virtual absl::StatusOr<std::unique_ptr<Event>> CreateEvent() = 0;
  // Blocks the host until the work that `event` marked is done.
  virtual absl::Status Synchronize(const Event& event) = 0;
  // Whether the work that `event` marked is done. An event never recorded is done.
  virtual absl::StatusOr<bool> IsDone(const Event& event) = 0;

  // Enqueue copies. Host memory must stay valid until the stream has passed them.
  // REQUIRES: both sides have the same size.
  virtual absl::Status Upload(Stream& stream, std::span<const std::byte> host,
                              DeviceSpan<std::byte> device) = 0;
  virtual absl::Status Download(Stream& stream, DeviceSpan<const std::byte> device,
                                std::span<std::byte> host) = 0;

  // Whether enqueuing costs enough to record work once and replay it, and streams run side by side.
  // Where not, Capture and Launch return UNIMPLEMENTED and work is enqueued piece by piece.
  virtual bool can_capture() const = 0;
  // Records what `enqueue` enqueues on `stream`, and on streams that wait for it and that it waits
  // for again, without running it. Addresses and sizes are fixed by that; what they hold is read
  // when the graph runs. `enqueue` must not synchronise, allocate, or copy from or to host memory
  // other than HostBuffers.
  virtual absl::StatusOr<std::unique_ptr<Graph>> Capture(
      Stream& stream, absl::FunctionRef<absl::Status()> enqueue) = 0;
  // Enqueues the recorded work on `stream`. The graph must stay until the stream has passed it.
  virtual absl::Status Launch(Stream& stream, Graph& graph) = 0;

  // Makes host memory (the arena, the rings) readable and writable by kernels, page-locked where
  // the device needs that; returns its device address. Undone by UnmapHost or with the device.
  virtual absl::StatusOr<DeviceSpan<std::byte>> MapHost(std::span<std::byte> host) = 0;
  virtual void UnmapHost(std::span<std::byte> host) = 0;

  // Bytes allocated now for `purpose`.
  virtual size_t allocated_bytes(MemoryPurpose purpose) const = 0;
  // Bytes of the device's memory in use now, by whomever and for whatever, as its driver has it.
  // Asking may take as long as a decode step: not for the engine's thread.
  virtual absl::StatusOr<size_t> MemoryInUse() const = 0;

 protected:
  friend class DeviceBuffer;
  friend class HostBuffer;
  virtual void Free(std::byte* data, size_t bytes, MemoryPurpose purpose) = 0;
  virtual void FreeHost(std::byte* data, size_t bytes) = 0;
};

}  // namespace retroinfer
