// The forward pass of a model, in pieces that the engine drives: prefill one (layer,
// chunk) at a time, decode one step of a batch at a time with attention left to the caller.
//
//   prefill                                   decode
//   Embed(chunk) into hidden                  Decode(token ids, positions):
//   for each layer, for each chunk:             embed
//     PrefillLayer(layer, chunk)                for each layer: norm, QKV, RoPE, `attention`,
//   (of the last layer the last row)              output projection, feed-forward
//   Logits(last row of hidden)                  norm, output projection -> logits
//
// Sampling is the caller's, too.
//
// A model may be split over ranks (shard_config.h): each has a Transformer of its own, whose ops'
// collective() joins it with the others. What layers add to the hidden state is summed over ranks,
// so that it is the same on all of them, to the bit; logits are gathered, on all of them, too. So
// all ranks make the same calls in the same order, with the same tokens, positions and numbers of
// rows; what differs are the heads in keys, values and attention, which are the rank's own.
//
// Everything is enqueued on the caller's stream; nothing is allocated after Load.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/device/memory_need.h"
#include "gpu_worker/model/checkpoint.h"
#include "gpu_worker/model/hidden_update.h"
#include "gpu_worker/model/model_config.h"
#include "gpu_worker/model/model_weights.h"
#include "gpu_worker/model/workspace.h"
#include "gpu_worker/ops/attention/attention_form.h"
#include "gpu_worker/ops/attention/attention_window.h"
#include "gpu_worker/ops/backend/backend_needs.h"
#include "gpu_worker/ops/backend/ops.h"

namespace retroinfer {

// Attention of one layer of a decode step: stores the keys and values of the new tokens and fills
// `out`. All are in activation dtype; queries and keys are after RoPE.
//   queries, out   [batch, query_heads * head_dim]
//   keys, values   [batch, kv_heads * head_dim]
using LayerAttention = absl::FunctionRef<absl::Status(
    uint32_t layer, const MatrixView& queries, const MatrixView& keys, const MatrixView& values,
    const MatrixView& out)>;

// Consecutive rows of a pass that belong to one sequence.
struct PrefillPiece {
  int64_t num_rows = 0;
  int64_t first_token = 0;  // position of the first row
  LayerKv kv;               // holds the tokens before it; gets theirs
  // Only the last `num_outputs` rows, 0 to num_rows, go on; the others stay as they are. Of the
  // last layer a prompt needs all keys and values, but no row beside its last.
  int64_t num_outputs = 0;
  // Which tokens before them the rows see in a layer that could see all; where the rows do not,
  // first_token is a row of `kv`.
  AttentionWindow window;
  // Which blocks of them, in a layer that sees all; the rows of a unit are in one piece then.
  BlockChoice choice;

  // Further places that get the rows' keys and values, from `first_token` on.
  struct Copy {
    LayerKv kv;
    int64_t first_token = 0;
  };
  std::vector<Copy> copies;
  // Enqueue what comes before the rows' keys and values are stored, and behind their attention: as
  // long as that, `kv` is as the pieces before and this one have left it. May be empty.
  std::function<absl::Status()> before;
  std::function<absl::Status()> behind;
};

struct TransformerOptions {
  int64_t max_prefill_rows = 512;  // tokens of a chunk
  int64_t max_decode_rows = 16;    // sequences of a batch
  int64_t max_positions = 0;       // tokens of a sequence; 0: the model's context length
  KeptWeights weights = KeptWeights::kAsStored;  // of Load and LoadRandom
  // Which part of the model is this rank's: as ops.collective().parallel(), or all of a model that
  // the other ranks have nothing of.
  TensorParallel parallel;
  LoadProgress progress;
};

// Threads: one at a time. Prefill and decode may be interleaved, on one stream.
// Owns:    the weights and the activations of a layer.
class Transformer {
 public:
  // What Load takes beside the weights of the model.
  //
  // REQUIRES: ShardConfig(config, options.parallel) is OK.
  static MemoryNeed MemoryOf(const ModelConfig& config, const BackendNeeds& backend,
                             const TransformerOptions& options);

  // `device` and `ops` must outlive the result, `checkpoint` not. May take minutes. `config` and
  // `checkpoint` are those of the whole model, whatever this rank has of it.
  //
  // Returns: as LoadModelWeights, ShardConfig and ShardCheckpoint; INVALID_ARGUMENT if
  //          max_positions is longer than the model's context, or options.parallel is a part, of
  //          other ranks than `ops` join.
  static absl::StatusOr<std::unique_ptr<Transformer>> Load(Device& device, Ops& ops,
                                                           const ModelConfig& config,
                                                           const Checkpoint& checkpoint,
                                                           const TransformerOptions& options);

  // The same with weights that are in device memory already: this rank's.
  static absl::StatusOr<std::unique_ptr<Transformer>> Create(Device& device, Ops& ops,
                                                             const ModelConfig& config,
                                                             ModelWeights weights,
                                                             const TransformerOptions& options);

  // The same with random weights, without a checkpoint. Returns: as RandomModelWeights.
  static absl::StatusOr<std::unique_ptr<Transformer>> LoadRandom(Device& device, Ops& ops,
                                                                 const ModelConfig& config,
                                                                 const TransformerOptions& options);

  // Of this rank: its heads and features (ModelConfig::shard).
  const ModelConfig& config() const { return config_; }
  DType activation_dtype() const { return ops_.model().activation_dtype(); }
  // How the heads of a layer attend.
  AttentionForm AttentionOf(uint32_t layer) const;
  int64_t max_prefill_rows() const { return prefill_.max_rows(); }
  int64_t max_decode_rows() const { return decode_.max_rows(); }
  int64_t max_positions() const { return static_cast<int64_t>(positions_.as<int32_t>().size()); }

  // All calls below return INVALID_ARGUMENT if a shape or position is outside what Load was asked
  // for.

  // Looks up the embeddings of `token_ids` [n], each in [0, vocab), into `hidden` [n, hidden].
  absl::Status Embed(Stream& stream, DeviceSpan<const int32_t> token_ids, const MatrixView& hidden);

  // Takes n <= max_prefill_rows() tokens through one layer: `hidden` [n, hidden] in activation
  // dtype, in place; `positions` [n], each as `pieces` say, which cover all rows in order. Keys
  // (after RoPE) and values become tokens of the pieces' `kv`. The result does not depend on where
  // pieces and passes begin and end, nor on what else is in a pass.
  //
  // REQUIRES: a sequence is in one piece of a pass, or in several in the order of its tokens.
  absl::Status PrefillLayer(Stream& stream, uint32_t layer, const MatrixView& hidden,
                            DeviceSpan<const int32_t> positions,
                            std::span<const PrefillPiece> pieces);
  // The same for tokens [first_token, first_token + n) of one sequence.
  absl::Status PrefillLayer(Stream& stream, uint32_t layer, const MatrixView& hidden,
                            int64_t first_token, const LayerKv& kv, int64_t num_outputs);

  // Final norm and output projection: `hidden` [n, hidden] as the last layer left it, `logits`
  // [n, vocab] f32; n <= max_prefill_rows(). `hidden` is unchanged.
  absl::Status Logits(Stream& stream, const MatrixView& hidden, const MatrixView& logits);

  // One step for n <= max_decode_rows() sequences: `token_ids` [n], `positions` [n] of these
  // tokens, each in [0, max_positions()); calls `attention` once for each layer, in order, and
  // fills `logits` [n, vocab] f32. A row's result does not depend on the other rows.
  absl::Status Decode(Stream& stream, DeviceSpan<const int32_t> token_ids,
                      DeviceSpan<const int32_t> positions, LayerAttention attention,
                      const MatrixView& logits);

 private:
  Transformer(Ops& ops, const ModelConfig& config) : ops_(ops), config_(config) {}

  // Everything but the weights.
  static absl::StatusOr<std::unique_ptr<Transformer>> WithoutWeights(
      Device& device, Ops& ops, const ModelConfig& config, const TransformerOptions& options);
  absl::Status UploadTables(Device& device, int64_t max_positions);
  // The table of layers that are, or are not, turned by ModelConfig::window_rope.
  absl::Status RopeTable(Stream& stream, DeviceSpan<const int32_t> positions,
                         const Workspace::Views& rows, bool of_windows);
  // `in` times `linear` as `update` wants it, and what belongs behind that.
  absl::Status AddProjected(Stream& stream, const PreparedLinear& linear, const MatrixView& in,
                            const HiddenUpdate& update, bool decode);
  // Projection, norms of heads, RoPE, as the layer has them: rows.normed -> rows.qkv.
  absl::Status ProjectQkv(Stream& stream, const LayerWeights& weights, const Workspace::Views& rows,
                          bool decode);
  // Output projection: hidden += f(attended), then `next`. `scratch`: as hidden.
  absl::Status AddAttended(Stream& stream, const LayerWeights& weights, const MatrixView& attended,
                           const MatrixView& hidden, const MatrixView& scratch,
                           std::optional<RmsNormArgs> next, bool decode);
  // Feed-forward network: hidden += g(rows.normed), then `next`.
  absl::Status FeedForward(Stream& stream, const LayerWeights& weights, const MatrixView& hidden,
                           const Workspace::Views& rows, std::optional<RmsNormArgs> next,
                           bool decode);
  absl::Status DenseFeedForward(Stream& stream, const LayerWeights& weights,
                                const Workspace::Views& rows, const HiddenUpdate& update,
                                bool decode);
  absl::Status ExpertFeedForward(Stream& stream, const LayerWeights& weights,
                                 const Workspace::Views& rows, const HiddenUpdate& update,
                                 bool decode);
  absl::Status CheckPieces(const MatrixView& hidden, std::span<const PrefillPiece> pieces) const;
  absl::Status StorePiece(Stream& stream, const Workspace::Views& rows, int64_t begin,
                          const PrefillPiece& piece);
  absl::Status AttendPieces(Stream& stream, uint32_t layer, const Workspace::Views& rows,
                            std::span<const PrefillPiece> pieces);
  // Turns queries and keys in rows.qkv.
  absl::Status Rope(Stream& stream, const LayerWeights& weights, const Workspace::Views& rows);
  // Output projection.
  absl::Status FindLogits(Stream& stream, const MatrixView& normed, const MatrixView& logits);
  // Of each head alone, in place.
  absl::Status NormHeads(Stream& stream, const MatrixView& heads, const MatrixView& weight);
  // Norms of the hidden state: in front of a half of a layer, and of the output projection.
  RmsNormArgs NormOf(const MatrixView& hidden, const MatrixView& weight,
                     const MatrixView& out) const;
  RmsNormArgs FinalNormOf(const MatrixView& hidden, const MatrixView& out) const;
  absl::Status Project(Stream& stream, const PreparedLinear& linear, const MatrixView& in,
                       const MatrixView& out, bool accumulate, bool decode);

  // Constant after Load.
  Ops& ops_;
  const ModelConfig config_;
  ModelWeights weights_;
  DeviceBuffer inv_freq_;   // [rotated_dims / 2] f32; with a window_rope, those of it follow
  DeviceBuffer positions_;  // [max_positions] int32: 0, 1, 2, ...

  DeviceBuffer choice_scratch_;  // of prefill attention to chosen blocks
  Workspace prefill_;
  Workspace decode_;
};

}  // namespace retroinfer
