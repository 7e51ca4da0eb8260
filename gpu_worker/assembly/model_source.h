// What a worker is to run: a model as people have it, or a shape with random weights.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/kv/kv_format.h"
#include "gpu_worker/assembly/served_engine_options.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/model/channel_balance.h"
#include "gpu_worker/model/checkpoint.h"
#include "gpu_worker/model/fingerprint.h"
#include "gpu_worker/model/generation_config.h"
#include "gpu_worker/model/kept_weights.h"
#include "gpu_worker/model/model_config.h"
#include "gpu_worker/model/model_weights.h"
#include "gpu_worker/model/weight_jobs.h"
#include "gpu_worker/ops/collective/tensor_parallel.h"
#include "gpu_worker/ops/model/model_ops.h"
#include "text/tokenizer/tokenizer.h"

namespace retroinfer {

// Threads: immutable after Open.
// Owns:    the files of a checkpoint, and the tokenizer.
class ModelSource {
 public:
  // Requests of a server with synthetic contexts, where --max-model-len does not say.
  static constexpr int64_t kSyntheticRequestTokens = 8192;

  // Opens and checks the model options.model_folder (StoredModel), with RoPE as
  // options.rope_scaling has it. With
  // --load-format dummy no weights are read: the shape is that of options.model_shape or of the
  // model's configuration; the tokenizer is the model's, or a token for each byte where there is
  // none; and contexts may be longer than the model's.
  //
  // Returns: NOT_FOUND, INVALID_ARGUMENT or UNIMPLEMENTED for a folder or a shape that is not
  //          there, not right or not supported.
  static absl::StatusOr<ModelSource> Open(const ServedEngineOptions& options);

  // Of the whole model; ShardConfig makes a rank's of it.
  const ModelConfig& config() const { return config_; }
  const GenerationConfig& generation() const { return generation_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  // Of the model, or of the shape.
  const std::string& name() const { return name_; }
  // In what matrices are kept, as options.weights_dtype and activations_dtype say.
  KeptWeights keep() const { return keep_; }
  // Of the weights in a backend's memory, about.
  size_t WeightBytes(const BackendNeeds& needs) const;
  // The same of what a rank has of them. Returns: as ShardConfig and ShardCheckpoint, so that what
  // cannot be split is refused before anything is loaded.
  absl::StatusOr<size_t> WeightBytesOf(const TensorParallel& parallel,
                                       const BackendNeeds& needs) const;

  struct Loaded {
    ModelWeights weights;
    Fingerprint fingerprint = {};
  };
  // Reads or makes the weights, and names them, in one pass over the files where they are not
  // mapped, or are to be decoded. Progress goes to the log and to `progress`: from nothing to all,
  // on any thread, one call at a time.
  //
  // A rank of several (`parallel`) reads its part. The model has the name that it has anyway, which
  // the first rank finds by reading and hashing all of it meanwhile: at 1.5 GB/s for each thread,
  // so that a model of 140 GB takes a few seconds on 16 of them where the page cache or the disk
  // keep up; others get a name of zeros. (Each rank could hash what it reads, in an order that all
  // agree on: that would be another name.)
  //
  // Returns: as ShardConfig and ShardCheckpoint; INVALID_ARGUMENT if `kv_format` stores keys in
  //          eight bits and this model's have biases that these do not bear; as LoadModelWeights
  //          and RandomModelWeights.
  absl::StatusOr<Loaded> Load(Device& device, ModelOps& ops, WeightSource weight_source,
                              const KvFormat& kv_format, const LoadProgress& progress = {},
                              const TensorParallel& parallel = {}) const;

 private:
  absl::StatusOr<Loaded> LoadCheckpoint(Device& device, ModelOps& ops, WeightSource weight_source,
                                        const KvFormat& kv_format, const LoadProgress& progress,
                                        const TensorParallel& parallel) const;
  absl::Status OpenDummy(const ServedEngineOptions& options);
  absl::Status OpenModel(const ServedEngineOptions& options);

  std::string name_;
  ModelConfig config_;
  GenerationConfig generation_;
  std::unique_ptr<Tokenizer> tokenizer_;
  KeptWeights keep_ = KeptWeights::kAsStored;
  std::optional<Checkpoint> checkpoint_;  // none: random weights
};

}  // namespace retroinfer
