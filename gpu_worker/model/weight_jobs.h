// Brings the tensors of a checkpoint to the device, in order, and makes something of each: from the
// mapped files, or through threads that read the files into page-locked memory, several pieces at a
// time, while earlier ones are copied and prepared. What the second way costs beside the disk is
// little, and it needs no pages of the page cache to be mapped; the first needs no copy where the
// device's memory is the host's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/model/fingerprint.h"
#include "gpu_worker/model/host_tensor.h"

namespace retroinfer {

// Called with the bytes of weights done so far and in all.
using LoadProgress = std::function<void(size_t, size_t)>;

enum class WeightSource {
  kMapping,  // copies from the mapped files, one tensor after the other
  kReading,  // reads the files on threads of its own
};

// Tensors that are needed on the device together.
struct WeightJob {
  struct Part {
    std::string name;
    HostTensor tensor;
    size_t at = 0;  // bytes, in the job's memory
    // Each of the tensor's first dimension is multiplied by two to the power of its own, behind the
    // hashing; empty: by nothing. As ScaleRows (host_numbers.h) wants them.
    std::vector<int8_t> row_exponents = {};
  };
  std::vector<Part> parts;
  // Where the parts belong; empty: `staging_bytes` of memory that is theirs until `finish` returns.
  DeviceSpan<std::byte> target;
  size_t staging_bytes = 0;  // 0 and no target: the parts are read and hashed, not copied
  // Called when all parts are there, jobs in order, one at a time; may be empty.
  std::function<absl::Status(DeviceSpan<std::byte>)> finish;
};

struct WeightJobOptions {
  WeightSource source = WeightSource::kMapping;
  int num_threads = 16;                // of kReading, each with two pieces of memory
  CheckpointHasher* hasher = nullptr;  // of kReading: gets every piece that is read
  LoadProgress progress;               // called on the caller's thread
};

// Runs `jobs`. Beside what the jobs' targets hold it takes device memory for the largest of the
// others, with kReading also for up to 256 MiB more; until it returns.
//
// Returns: RESOURCE_EXHAUSTED if the device has too little memory; DATA_LOSS, with the tensor, what
//          was needed and what there was, if a file became shorter than it was when it was opened;
//          as the system says if it cannot be read; what `finish` returns.
absl::Status RunWeightJobs(Device& device, const std::vector<WeightJob>& jobs,
                           const WeightJobOptions& options);

}  // namespace retroinfer
