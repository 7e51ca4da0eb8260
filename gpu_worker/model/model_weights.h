// The weights of a model in device memory, in the form that the operations want.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/model/channel_balance.h"
#include "gpu_worker/model/checkpoint.h"
#include "gpu_worker/model/layer_vectors.h"
#include "gpu_worker/model/model_config.h"
#include "gpu_worker/model/model_table.h"
#include "gpu_worker/model/weight_jobs.h"
#include "gpu_worker/ops/model/model_ops.h"

namespace retroinfer {

// Q = query_heads * head_dim, K = kv_heads * head_dim, F = intermediate size, E = experts. Layers
// of FeedForwardKind::kExperts have a router, and matrices of all experts one below the other.
struct LayerWeights {
  LayerSpec spec;
  DeviceSpan<const float> sinks;   // [query_heads]; empty: there are none
  MatrixView attention_norm;       // [1, hidden]
  MatrixView mlp_norm;             // [1, hidden]
  MatrixView q_norm;               // [1, head_dim]; where heads have norms
  MatrixView k_norm;               // [1, head_dim]
  MatrixView post_attention_norm;  // [1, hidden]; with LayerSpec::post_norms
  MatrixView post_mlp_norm;        // [1, hidden]
  // Taken from every key behind RoPE (ChannelBalance::key_offsets); empty: nothing is.
  DeviceSpan<const float> key_offsets;      // [K]
  std::unique_ptr<PreparedLinear> qkv;      // hidden -> Q + 2 K: queries, keys, values
  std::unique_ptr<PreparedLinear> o;        // Q -> hidden
  std::unique_ptr<PreparedLinear> router;   // hidden -> E
  std::unique_ptr<PreparedLinear> gate_up;  // hidden -> 2 F: gate, then up; or E times that
  std::unique_ptr<PreparedLinear> down;     // F -> hidden; or E times that

  // The same by their names in the model's table.
  // REQUIRES: `role` is one of kLayerNorms, `projection` one of ProjectionsOf(spec).
  MatrixView& Norm(TensorRole role);
  std::unique_ptr<PreparedLinear>& Linear(Projection projection);
};

// Threads: immutable after loading.
struct ModelWeights {
  DeviceBuffer embedding_buffer;
  DeviceBuffer norm_buffer;  // all norms
  LayerVectors sinks;
  LayerVectors key_offsets;
  WeightView embedding;   // [vocab, hidden], as stored
  MatrixView final_norm;  // [1, hidden]
  std::vector<LayerWeights> layers;
  std::unique_ptr<PreparedLinear> lm_head;  // hidden -> vocab
};

// Checks that the checkpoint holds what the model needs (ModelTable) and nothing that it would
// ignore. Matrices of one that is quantized (ModelConfig::quantization) may be codes and have
// tensors of scales and what else their form has.
//
// Returns: INVALID_ARGUMENT, naming the tensor, if one is missing, has another shape, or is there
//          and no part of this architecture (a bias, an adapter): without it answers were wrong;
//          or if codes are where none may be, or lack their scales; UNIMPLEMENTED if matrices that
//          are multiplied as one have groups of other input features.
absl::Status CheckTensors(const ModelConfig& config, const Checkpoint& checkpoint);

// Copies all weights to the device; `keep` is for the matrices of layers, and for others of codes.
// `checkpoint` is not needed afterwards. With a hasher every tensor is hashed on the way, those
// without effect, too. What `balance` says of queries and keys is done behind the hashing;
// its offsets are uploaded.
//
// Returns: as CheckTensors and RunWeightJobs; INVALID_ARGUMENT, naming the tensor, for scales and
//          codes that are no numbers, scales that are not above zero, and numbers that are not
//          finite where they are to become codes. Beside the weights it takes device memory for
//          the largest matrix, and what RunWeightJobs says of it, until it returns.
absl::StatusOr<ModelWeights> LoadModelWeights(Device& device, ModelOps& ops,
                                              const ModelConfig& config,
                                              const Checkpoint& checkpoint,
                                              const WeightJobOptions& options,
                                              KeptWeights keep = KeptWeights::kAsStored,
                                              const ChannelBalance& balance = {});

}  // namespace retroinfer
