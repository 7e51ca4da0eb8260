// The fingerprint of a model: SHA-256 over everything that decides which KV bytes a token gets.
// Stored KV is only ever reused under the same fingerprint.
//
// Weights are hashed in full, not sampled: a fine-tune may differ from its base in a few rows of
// one table, and KV of the wrong model must never be served. The bytes are read for loading anyway;
// pieces are hashed side by side, at about 1.5 GB/s for each thread with SHA instructions.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "gpu_worker/model/channel_balance.h"
#include "gpu_worker/model/checkpoint.h"
#include "gpu_worker/model/model_config.h"
#include "gpu_worker/ops/model/linear.h"

namespace retroinfer {

using Fingerprint = std::array<uint8_t, 32>;

std::string FingerprintHex(const Fingerprint& fingerprint);

// Hashes a list of named values. Each is written as
//   u32 length of the name | name | u64 length of the value | value       (little-endian)
// so that no two different lists give the same bytes.
//
// Threads: one.
class FingerprintBuilder {
 public:
  FingerprintBuilder();
  ~FingerprintBuilder();
  FingerprintBuilder(const FingerprintBuilder&) = delete;
  FingerprintBuilder& operator=(const FingerprintBuilder&) = delete;

  void AddBytes(const std::string& name, std::span<const std::byte> value);
  void AddInt(const std::string& name, int64_t value);
  void AddDouble(const std::string& name, double value);
  void AddFingerprint(const std::string& name, const Fingerprint& value);

  // REQUIRES: not called before; nothing is added after.
  Fingerprint Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct FingerprintOptions {
  int num_threads = 1;
  // Called with bytes hashed so far and in all, from the hashing threads, one call at a time.
  std::function<void(size_t, size_t)> progress;
  KeptWeights keep = KeptWeights::kAsStored;
  const ChannelBalance* balance = nullptr;  // none: queries and keys are as they are stored
};

// Hashes the tensors of a checkpoint piece by piece, as they come.
//
// Threads: Add may be called from several threads at a time; Finish after all of them.
class CheckpointHasher {
 public:
  static constexpr size_t kPieceBytes = size_t{4} << 20;

  // `checkpoint` must outlive it.
  explicit CheckpointHasher(const Checkpoint& checkpoint);

  // Adds the bytes of tensor `name` from `begin` on.
  // REQUIRES: `begin` is a multiple of kPieceBytes; the piece is that long or ends with the tensor;
  //           it was not added before.
  void Add(const std::string& name, size_t begin, std::span<const std::byte> bytes);

  // What ModelFingerprint returns. INTERNAL if a piece is missing, or OpenSSL failed.
  absl::StatusOr<Fingerprint> Finish(const ModelConfig& config,
                                     KeptWeights keep = KeptWeights::kAsStored,
                                     const ChannelBalance* balance = nullptr) const;

 private:
  const Checkpoint& checkpoint_;
  std::map<std::string, std::vector<Fingerprint>> pieces_;  // by tensor
  size_t num_pieces_ = 0;
  std::atomic<size_t> num_added_ = 0;
};

// Hashes geometry, RoPE, norm settings, and name, type, shape and content of every tensor, and in
// what they are kept if it is not as they are stored, and the exponents of a balance that changes
// something. How the weights are split into files does not
// matter.
absl::StatusOr<Fingerprint> ModelFingerprint(const ModelConfig& config,
                                             const Checkpoint& checkpoint,
                                             const FingerprintOptions& options);

// The same of a model with random weights (random_weights.h), which are the same for one config:
// other than that of any checkpoint.
Fingerprint RandomModelFingerprint(const ModelConfig& config,
                                   KeptWeights keep = KeptWeights::kAsStored);

}  // namespace retroinfer
