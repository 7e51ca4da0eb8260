#include "gpu_worker/model/transformer.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/random_weights.h"
#include "gpu_worker/model/rope_scaling.h"
#include "gpu_worker/model/shard_checkpoint.h"
#include "gpu_worker/model/shard_config.h"

namespace retroinfer {
namespace {

absl::Status CheckRows(const char* what, int64_t rows, int64_t max_rows) {
  if (rows >= 1 && rows <= max_rows) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, ": ", rows, " rows; the model was loaded for 1 to ", max_rows));
}

absl::Status CheckMatrix(const char* what, const MatrixView& matrix, DType dtype, int64_t rows,
                         int64_t cols) {
  if (matrix.dtype == dtype && matrix.rows == rows && matrix.cols == cols) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      what, ": is ", std::string(DTypeName(matrix.dtype)), " [", matrix.rows, ", ", matrix.cols,
      "], needs ", std::string(DTypeName(dtype)), " [", rows, ", ", cols, "]"));
}

int64_t MaxPositions(const ModelConfig& config, const TransformerOptions& options) {
  return options.max_positions == 0 ? config.context_length : options.max_positions;
}

// Those of all layers, then those of window layers, if theirs are others.
std::vector<float> InverseFrequencies(const ModelConfig& config) {
  std::vector<float> all = config.rope.InverseFrequencies(config.own_head_dim());
  if (!config.window_rope.has_value()) return all;
  const std::vector<float> more = config.window_rope->InverseFrequencies(config.own_head_dim());
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

}  // namespace

MemoryNeed Transformer::MemoryOf(const ModelConfig& config, const BackendNeeds& backend,
                                 const TransformerOptions& options) {
  const absl::StatusOr<ModelConfig> of_rank = ShardConfig(config, options.parallel);
  RI_CHECK(of_rank.ok());
  MemoryNeed need;
  need[MemoryPurpose::kWeights] = InverseFrequencies(config).size() * sizeof(float);
  need[MemoryPurpose::kActivations] =
      Workspace::Bytes(*of_rank, backend.activation_dtype, options.max_prefill_rows) +
      Workspace::Bytes(*of_rank, backend.activation_dtype, options.max_decode_rows) +
      backend.prefill_attention_scratch(options.max_prefill_rows, MaxPositions(config, options),
                                        of_rank->num_query_heads) +
      static_cast<size_t>(MaxPositions(config, options)) * sizeof(int32_t);
  return need;
}

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Load(Device& device, Ops& ops,
                                                               const ModelConfig& config,
                                                               const Checkpoint& checkpoint,
                                                               const TransformerOptions& options) {
  ASSIGN_OR_RETURN(auto model, WithoutWeights(device, ops, config, options));
  RETURN_IF_ERROR(CheckTensors(config, checkpoint));
  ChannelBalance balance = ChannelBalance::Of(config, checkpoint, 1);
  std::optional<Checkpoint> part;
  if (model->config_.shard.has_value()) {
    ASSIGN_OR_RETURN(part, ShardCheckpoint(config, model->config_, checkpoint));
    balance = balance.Of(*model->config_.shard);
  }
  ASSIGN_OR_RETURN(
      model->weights_,
      LoadModelWeights(device, ops.model(), model->config_, part.has_value() ? *part : checkpoint,
                       {.progress = options.progress}, options.weights, balance));
  return model;
}

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Create(
    Device& device, Ops& ops, const ModelConfig& config, ModelWeights weights,
    const TransformerOptions& options) {
  ASSIGN_OR_RETURN(auto model, WithoutWeights(device, ops, config, options));
  model->weights_ = std::move(weights);
  return model;
}

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::LoadRandom(
    Device& device, Ops& ops, const ModelConfig& config, const TransformerOptions& options) {
  ASSIGN_OR_RETURN(auto model, WithoutWeights(device, ops, config, options));
  ASSIGN_OR_RETURN(model->weights_, RandomModelWeights(device, ops.model(), config, options.weights,
                                                       options.parallel));
  return model;
}

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::WithoutWeights(
    Device& device, Ops& ops, const ModelConfig& config, const TransformerOptions& options) {
  const int64_t max_positions = MaxPositions(config, options);
  if (max_positions < 1 || max_positions > config.context_length) {
    const std::optional<std::string> scaling = DocumentedRopeScaling(config);
    return absl::InvalidArgumentError(absl::StrCat(
        "the context was set to ", max_positions, " tokens; the model has 1 to ",
        config.context_length,
        scaling.has_value() ? absl::StrCat(", more with --rope-scaling ", *scaling) : ""));
  }
  if (options.max_prefill_rows < 1 || options.max_decode_rows < 1) {
    return absl::InvalidArgumentError("prefill and decode need at least one row each");
  }
  const TensorParallel joined = ops.collective().parallel();
  if (options.parallel != joined && !options.parallel.is_all()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the model is to be loaded as rank ", options.parallel.rank, " of ",
                     options.parallel.num_ranks, "; operations join rank ", joined.rank, " of ",
                     joined.num_ranks));
  }
  ASSIGN_OR_RETURN(const ModelConfig of_rank, ShardConfig(config, options.parallel));
  std::unique_ptr<Transformer> model(new Transformer(ops, of_rank));
  const DType dtype = ops.model().activation_dtype();
  ASSIGN_OR_RETURN(model->prefill_,
                   Workspace::Create(device, of_rank, dtype, options.max_prefill_rows));
  ASSIGN_OR_RETURN(model->decode_,
                   Workspace::Create(device, of_rank, dtype, options.max_decode_rows));
  const size_t scratch = ops.attention().PrefillAttentionScratchBytes(
      options.max_prefill_rows, max_positions, of_rank.num_query_heads);
  ASSIGN_OR_RETURN(model->choice_scratch_, device.Allocate(scratch, MemoryPurpose::kActivations));
  RETURN_IF_ERROR(model->UploadTables(device, max_positions));
  return model;
}

absl::Status Transformer::UploadTables(Device& device, int64_t max_positions) {
  const std::vector<float> inv_freq = InverseFrequencies(config_);
  std::vector<int32_t> positions(static_cast<size_t>(max_positions));
  std::iota(positions.begin(), positions.end(), 0);
  const auto inv_freq_bytes = std::as_bytes(std::span(inv_freq));
  const auto position_bytes = std::as_bytes(std::span(positions));
  ASSIGN_OR_RETURN(inv_freq_, device.Allocate(inv_freq_bytes.size(), MemoryPurpose::kWeights));
  ASSIGN_OR_RETURN(positions_, device.Allocate(position_bytes.size(), MemoryPurpose::kActivations));
  ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.CreateStream(StreamKind::kCompute));
  RETURN_IF_ERROR(device.Upload(*stream, inv_freq_bytes, inv_freq_.bytes()));
  RETURN_IF_ERROR(device.Upload(*stream, position_bytes, positions_.bytes()));
  return stream->Synchronize();
}

RmsNormArgs Transformer::NormOf(const MatrixView& hidden, const MatrixView& weight,
                                const MatrixView& out) const {
  return {.in = hidden,
          .weight = weight,
          .epsilon = config_.hidden_epsilon(),
          .weight_offset = config_.norm_offset,
          .out = out};
}

RmsNormArgs Transformer::FinalNormOf(const MatrixView& hidden, const MatrixView& out) const {
  RmsNormArgs norm = NormOf(hidden, weights_.final_norm, out);
  norm.scale = static_cast<float>(1 / config_.logits_divisor);
  return norm;
}

absl::Status Transformer::NormHeads(Stream& stream, const MatrixView& heads,
                                    const MatrixView& weight) {
  return ops_.model().RmsNorm(stream, {.in = heads,
                                       .weight = weight,
                                       .epsilon = config_.rms_norm_epsilon,
                                       .weight_offset = config_.norm_offset,
                                       .out = heads});
}

absl::Status Transformer::AddProjected(Stream& stream, const PreparedLinear& linear,
                                       const MatrixView& in, const HiddenUpdate& update,
                                       bool decode) {
  RETURN_IF_ERROR(Project(stream, linear, in, update.part(), update.adds_at_once(), decode));
  return update.Finish(stream);
}

absl::Status Transformer::FindLogits(Stream& stream, const MatrixView& normed,
                                     const MatrixView& logits) {
  if (!config_.shard.has_value()) {
    return Project(stream, *weights_.lm_head, normed, logits, false, true);
  }
  const ModelShard& shard = *config_.shard;
  const MatrixView mine = logits.Columns(shard.outputs.first, shard.outputs.count);
  RETURN_IF_ERROR(Project(stream, *weights_.lm_head, normed, mine, false, true));
  return ops_.collective().AllGather(stream,
                                     {.in = mine, .out = logits, .unit = shard.output_unit});
}

absl::Status Transformer::Project(Stream& stream, const PreparedLinear& linear,
                                  const MatrixView& in, const MatrixView& out, bool accumulate,
                                  bool decode) {
  return ops_.model().Linear(
      stream,
      {.linear = &linear, .in = in, .out = out, .accumulate = accumulate, .decode = decode});
}

absl::Status Transformer::RopeTable(Stream& stream, DeviceSpan<const int32_t> positions,
                                    const Workspace::Views& rows, bool of_windows) {
  const RopeConfig& rope = of_windows ? *config_.window_rope : config_.rope;
  const size_t pairs = config_.rotated_dims() / 2;
  RopeTableArgs args = {
      .positions = positions,
      .inv_freq = inv_freq_.as<const float>().subspan(of_windows ? pairs : 0, pairs),
      .attention_factor = static_cast<float>(rope.attention_factor),
      .cos = of_windows ? rows.window_cos : rows.cos,
      .sin = of_windows ? rows.window_sin : rows.sin};
  RETURN_IF_ERROR(ops_.model().RopeTable(stream, args));
  if (rope.query_growth == 0) return absl::OkStatus();
  args.growth = static_cast<float>(rope.query_growth);
  args.growth_positions = static_cast<int32_t>(rope.original_positions);
  args.cos = rows.query_cos;
  args.sin = rows.query_sin;
  return ops_.model().RopeTable(stream, args);
}

absl::Status Transformer::Rope(Stream& stream, const LayerWeights& weights,
                               const Workspace::Views& rows) {
  const bool of_windows = weights.spec.window_rope;
  RopeArgs args = {.x = rows.qkv.Columns(0, config_.query_size() + config_.kv_size()),
                   .head_dim = config_.head_dim,
                   .rotated_dims = config_.rotated_dims(),
                   .cos = of_windows ? rows.window_cos : rows.cos,
                   .sin = of_windows ? rows.window_sin : rows.sin,
                   .offsets = weights.key_offsets};
  if (config_.rope.query_growth == 0) return ops_.model().Rope(stream, args);
  args.x = rows.keys;
  RETURN_IF_ERROR(ops_.model().Rope(stream, args));
  args.x = rows.queries;
  args.cos = rows.query_cos;
  args.sin = rows.query_sin;
  args.offsets = {};
  return ops_.model().Rope(stream, args);
}

absl::Status Transformer::ProjectQkv(Stream& stream, const LayerWeights& weights,
                                     const Workspace::Views& rows, bool decode) {
  RETURN_IF_ERROR(Project(stream, *weights.qkv, rows.normed, rows.qkv, false, decode));
  if (weights.spec.qk_norm) {
    RETURN_IF_ERROR(NormHeads(stream, rows.queries, weights.q_norm));
    RETURN_IF_ERROR(NormHeads(stream, rows.keys, weights.k_norm));
  }
  return weights.spec.rope ? Rope(stream, weights, rows) : absl::OkStatus();
}

absl::Status Transformer::AddAttended(Stream& stream, const LayerWeights& weights,
                                      const MatrixView& attended, const MatrixView& hidden,
                                      const MatrixView& scratch, std::optional<RmsNormArgs> next,
                                      bool decode) {
  const HiddenUpdate update(ops_, config_, weights.spec,
                            {.hidden = hidden,
                             .scratch = scratch,
                             .post_norm = weights.post_attention_norm,
                             .next = next});
  return AddProjected(stream, *weights.o, attended, update, decode);
}

absl::Status Transformer::FeedForward(Stream& stream, const LayerWeights& weights,
                                      const MatrixView& hidden, const Workspace::Views& rows,
                                      std::optional<RmsNormArgs> next, bool decode) {
  const HiddenUpdate update(
      ops_, config_, weights.spec,
      {.hidden = hidden, .scratch = rows.normed, .post_norm = weights.post_mlp_norm, .next = next});
  switch (weights.spec.feed_forward) {
    case FeedForwardKind::kDense:
      return DenseFeedForward(stream, weights, rows, update, decode);
    case FeedForwardKind::kExperts:
      return ExpertFeedForward(stream, weights, rows, update, decode);
  }
  return absl::InternalError("a feed-forward network of no known kind");
}

absl::Status Transformer::DenseFeedForward(Stream& stream, const LayerWeights& weights,
                                           const Workspace::Views& rows, const HiddenUpdate& update,
                                           bool decode) {
  const MatrixView gated = rows.gate_up.Columns(0, config_.intermediate_size);
  RETURN_IF_ERROR(ops_.model().GatedLinear(stream, {.linear = weights.gate_up.get(),
                                                    .in = rows.normed,
                                                    .gate_up = rows.gate_up,
                                                    .out = gated,
                                                    .decode = decode,
                                                    .activation = config_.activation}));
  return AddProjected(stream, *weights.down, gated, update, decode);
}

absl::Status Transformer::ExpertFeedForward(Stream& stream, const LayerWeights& weights,
                                            const Workspace::Views& rows,
                                            const HiddenUpdate& update, bool decode) {
  const Workspace::ExpertRows& experts = rows.experts;
  RETURN_IF_ERROR(Project(stream, *weights.router, rows.normed, experts.scores, false, decode));
  RETURN_IF_ERROR(
      ops_.model().RouteExperts(stream, {.scores = experts.scores,
                                         .weights_sum_to_one = config_.experts.weights_sum_to_one,
                                         .decode = decode,
                                         .routes = experts.routes}));
  RETURN_IF_ERROR(ops_.model().GroupedGatedLinear(stream, {.linear = weights.gate_up.get(),
                                                           .in = rows.normed,
                                                           .routes = experts.routes,
                                                           .out = experts.gated,
                                                           .decode = decode,
                                                           .activation = config_.activation}));
  RETURN_IF_ERROR(ops_.model().GroupedLinear(stream, {.linear = weights.down.get(),
                                                      .in = experts.gated,
                                                      .routes = experts.routes,
                                                      .products = experts.products,
                                                      .out = update.part(),
                                                      .decode = decode,
                                                      .accumulate = update.adds_at_once()}));
  return update.Finish(stream);
}

absl::Status Transformer::Embed(Stream& stream, DeviceSpan<const int32_t> token_ids,
                                const MatrixView& hidden) {
  RETURN_IF_ERROR(CheckMatrix("Embed: hidden", hidden, activation_dtype(),
                              static_cast<int64_t>(token_ids.size()), config_.hidden_size));
  return ops_.model().Embedding(stream, {.token_ids = token_ids,
                                         .table = weights_.embedding.Numbers(),
                                         .scale = config_.embedding_scale(),
                                         .out = hidden});
}

absl::Status Transformer::CheckPieces(const MatrixView& hidden,
                                      std::span<const PrefillPiece> pieces) const {
  int64_t rows = 0;
  for (const PrefillPiece& piece : pieces) {
    const int64_t limit = std::min(piece.kv.capacity, max_positions());
    if (piece.num_rows < 1 || piece.first_token < 0 || piece.first_token > limit - piece.num_rows) {
      return absl::InvalidArgumentError(absl::StrCat("PrefillLayer: tokens ", piece.first_token,
                                                     " to ", piece.first_token + piece.num_rows,
                                                     "; there is room for ", limit));
    }
    if (piece.num_outputs < 0 || piece.num_outputs > piece.num_rows) {
      return absl::InvalidArgumentError(absl::StrCat(
          "PrefillLayer: outputs for ", piece.num_outputs, " rows of ", piece.num_rows));
    }
    rows += piece.num_rows;
  }
  if (rows == hidden.rows) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("PrefillLayer: pieces of ", rows, " rows for hidden ", hidden.rows));
}

absl::Status Transformer::StorePiece(Stream& stream, const Workspace::Views& rows, int64_t begin,
                                     const PrefillPiece& piece) {
  StoreLayerKvArgs store{.keys = rows.keys.Rows(begin, piece.num_rows),
                         .values = rows.values.Rows(begin, piece.num_rows),
                         .first_token = piece.first_token,
                         .out = piece.kv};
  RETURN_IF_ERROR(ops_.attention().StoreLayerKv(stream, store));
  for (const PrefillPiece::Copy& copy : piece.copies) {
    store.first_token = copy.first_token;
    store.out = copy.kv;
    RETURN_IF_ERROR(ops_.attention().StoreLayerKv(stream, store));
  }
  return absl::OkStatus();
}

AttentionForm Transformer::AttentionOf(uint32_t layer) const {
  return {.scale = config_.attention_scale(),
          .window = config_.window_of(layer),
          .sinks = weights_.layers[layer].sinks};
}

absl::Status Transformer::AttendPieces(Stream& stream, uint32_t layer, const Workspace::Views& rows,
                                       std::span<const PrefillPiece> pieces) {
  const AttentionForm form = AttentionOf(layer);
  int64_t begin = 0;
  for (const PrefillPiece& piece : pieces) {
    if (piece.before) RETURN_IF_ERROR(piece.before());
    RETURN_IF_ERROR(StorePiece(stream, rows, begin, piece));
    begin += piece.num_rows;
    if (piece.num_outputs > 0) {
      const PrefillAttentionArgs args{
          .queries = rows.queries.Rows(begin - piece.num_outputs, piece.num_outputs),
          .kv = piece.kv,
          .first_token = piece.first_token + piece.num_rows - piece.num_outputs,
          .scale = form.scale,
          .window = form.window > 0 ? AttentionWindow{.tokens = form.window} : piece.window,
          .choice = form.window > 0 ? BlockChoice{} : piece.choice,
          .sinks = form.sinks,
          .out = rows.attention.Rows(begin - piece.num_outputs, piece.num_outputs),
          .scratch = choice_scratch_.bytes()};
      RETURN_IF_ERROR(ops_.attention().PrefillAttention(stream, args));
    }
    if (piece.behind) RETURN_IF_ERROR(piece.behind());
  }
  return absl::OkStatus();
}

absl::Status Transformer::PrefillLayer(Stream& stream, uint32_t layer, const MatrixView& hidden,
                                       DeviceSpan<const int32_t> positions,
                                       std::span<const PrefillPiece> pieces) {
  RETURN_IF_ERROR(CheckRows("PrefillLayer", hidden.rows, max_prefill_rows()));
  RETURN_IF_ERROR(CheckMatrix("PrefillLayer: hidden", hidden, activation_dtype(), hidden.rows,
                              config_.hidden_size));
  if (layer >= config_.num_layers) {
    return absl::InvalidArgumentError(
        absl::StrCat("PrefillLayer: layer ", layer, " of ", config_.num_layers));
  }
  RETURN_IF_ERROR(CheckPieces(hidden, pieces));
  if (static_cast<int64_t>(positions.size()) != hidden.rows) {
    return absl::InvalidArgumentError(
        absl::StrCat("PrefillLayer: ", positions.size(), " positions for ", hidden.rows, " rows"));
  }
  const LayerWeights& weights = weights_.layers[layer];
  const Workspace::Views rows = prefill_.Rows(hidden.rows);
  RETURN_IF_ERROR(RopeTable(stream, positions, rows, weights.spec.window_rope));
  RETURN_IF_ERROR(
      ops_.model().RmsNorm(stream, NormOf(hidden, weights.attention_norm, rows.normed)));
  RETURN_IF_ERROR(ProjectQkv(stream, weights, rows, false));
  RETURN_IF_ERROR(AttendPieces(stream, layer, rows, pieces));
  // Runs of rows that go on, in turn; all output projections come first, because the feed-forward
  // half uses the bytes of the attention half.
  for (const bool feed_forward : {false, true}) {
    int64_t end = 0;
    for (size_t i = 0; i < pieces.size(); ++i) {
      end += pieces[i].num_rows;
      int64_t run = pieces[i].num_outputs;
      while (i + 1 < pieces.size() && pieces[i + 1].num_outputs == pieces[i + 1].num_rows) {
        run += pieces[++i].num_rows;
        end += pieces[i].num_rows;
      }
      if (run == 0) continue;
      const MatrixView of_run = hidden.Rows(end - run, run);
      const Workspace::Views views = prefill_.Rows(run);
      if (feed_forward) {
        RETURN_IF_ERROR(
            ops_.model().RmsNorm(stream, NormOf(of_run, weights.mlp_norm, views.normed)));
        RETURN_IF_ERROR(FeedForward(stream, weights, of_run, views, std::nullopt, false));
      } else {
        const MatrixView attended = rows.attention.Rows(end - run, run);
        RETURN_IF_ERROR(
            AddAttended(stream, weights, attended, of_run, views.normed, std::nullopt, false));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Transformer::PrefillLayer(Stream& stream, uint32_t layer, const MatrixView& hidden,
                                       int64_t first_token, const LayerKv& kv,
                                       int64_t num_outputs) {
  RETURN_IF_ERROR(CheckRows("PrefillLayer", hidden.rows, max_prefill_rows()));
  const PrefillPiece piece{
      .num_rows = hidden.rows, .first_token = first_token, .kv = kv, .num_outputs = num_outputs};
  RETURN_IF_ERROR(CheckPieces(hidden, std::span(&piece, 1)));
  return PrefillLayer(stream, layer, hidden,
                      positions_.as<const int32_t>().subspan(static_cast<size_t>(first_token),
                                                             static_cast<size_t>(hidden.rows)),
                      std::span(&piece, 1));
}

absl::Status Transformer::Logits(Stream& stream, const MatrixView& hidden,
                                 const MatrixView& logits) {
  RETURN_IF_ERROR(CheckRows("Logits", hidden.rows, max_prefill_rows()));
  RETURN_IF_ERROR(
      CheckMatrix("Logits: hidden", hidden, activation_dtype(), hidden.rows, config_.hidden_size));
  RETURN_IF_ERROR(
      CheckMatrix("Logits: logits", logits, DType::kF32, hidden.rows, config_.vocab_size));
  const MatrixView normed = prefill_.Rows(hidden.rows).normed;
  RETURN_IF_ERROR(ops_.model().RmsNorm(stream, FinalNormOf(hidden, normed)));
  return FindLogits(stream, normed, logits);
}

absl::Status Transformer::Decode(Stream& stream, DeviceSpan<const int32_t> token_ids,
                                 DeviceSpan<const int32_t> positions, LayerAttention attention,
                                 const MatrixView& logits) {
  const auto batch = static_cast<int64_t>(token_ids.size());
  RETURN_IF_ERROR(CheckRows("Decode", batch, max_decode_rows()));
  RETURN_IF_ERROR(CheckMatrix("Decode: logits", logits, DType::kF32, batch, config_.vocab_size));
  if (positions.size() != token_ids.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("Decode: ", positions.size(), " positions for ", batch, " tokens"));
  }
  const Workspace::Views rows = decode_.Rows(batch);
  RETURN_IF_ERROR(Embed(stream, token_ids, rows.hidden));
  RETURN_IF_ERROR(RopeTable(stream, positions, rows, false));
  if (config_.window_rope.has_value()) {
    RETURN_IF_ERROR(RopeTable(stream, positions, rows, true));
  }
  const auto norm = [&](const MatrixView& weight) {
    return NormOf(rows.hidden, weight, rows.normed);
  };
  RETURN_IF_ERROR(ops_.model().RmsNorm(stream, norm(weights_.layers[0].attention_norm)));
  for (uint32_t layer = 0; layer < config_.num_layers; ++layer) {
    const LayerWeights& weights = weights_.layers[layer];
    const RmsNormArgs next = layer + 1 < config_.num_layers
                                 ? norm(weights_.layers[layer + 1].attention_norm)
                                 : FinalNormOf(rows.hidden, rows.normed);
    RETURN_IF_ERROR(ProjectQkv(stream, weights, rows, true));
    RETURN_IF_ERROR(attention(layer, rows.queries, rows.keys, rows.values, rows.attention));
    RETURN_IF_ERROR(AddAttended(stream, weights, rows.attention, rows.hidden, rows.normed,
                                norm(weights.mlp_norm), true));
    RETURN_IF_ERROR(FeedForward(stream, weights, rows.hidden, rows, next, true));
  }
  return FindLogits(stream, rows.normed, logits);
}

}  // namespace retroinfer
