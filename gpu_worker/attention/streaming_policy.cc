// Invariants:
// * In a lane, row r of a sequence's KV is the sink's token r for r < kSinkTokens, and behind that
//   the token at WindowTokenOf(r): the rows follow each other without a gap in the text.
// * Between two parts, and while decoding, dense_blocks[0] holds the sink and the blocks behind it
//   tokens [window_begin, num_tokens), where window_begin is that of the token at num_tokens.
// * The context of a part that is not the first has an even number of blocks behind the sink, or
//   begins where the text does. So a token's row differs from its position by a multiple of 128,
//   the largest block of keys that attention sums up at a time (prefill_attention.h), and what is
//   summed up does not depend on where parts begin.
#include "gpu_worker/attention/streaming_policy.h"

#include <algorithm>

#include "absl/memory/memory.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

int64_t BlocksFor(int64_t tokens) { return (tokens + kDenseBlockTokens - 1) / kDenseBlockTokens; }

// The same KV from row `first` on.
LayerKv From(const LayerKv& kv, int64_t first) {
  LayerKv rest = kv;
  rest.keys = kv.Key(0, first);
  rest.values = kv.Value(0, first);
  return rest;
}

// Where the sequence's lane has the token at `position`.
int64_t RowOf(const SequenceKv& sequence, int64_t position) {
  return sequence.part.num_context + position - sequence.part.begin;
}

}  // namespace

int64_t StreamingWindowBegin(int64_t position, int32_t window_tokens) {
  const int64_t block = std::max<int64_t>(0, position - kSinkTokens) / kDenseBlockTokens;
  return kSinkTokens +
         kDenseBlockTokens * std::max<int64_t>(0, block - BlocksFor(int64_t{window_tokens}));
}

absl::StatusOr<std::unique_ptr<StreamingPolicy>> StreamingPolicy::Create(
    Device& device, AttentionOps& ops, Stream& stream, KvMemory& memory, int32_t num_query_heads,
    int32_t max_batch) {
  ASSIGN_OR_RETURN(DenseZoneBatch dense,
                   DenseZoneBatch::CreateToAttend(device, ops, stream, memory.dense_pool(),
                                                  memory.tables(), max_batch, num_query_heads));
  auto policy = absl::WrapUnique(new StreamingPolicy(ops, stream, memory, std::move(dense)));
  policy->batch_.reserve(static_cast<size_t>(max_batch));
  return policy;
}

KvNeed StreamingPolicy::Need(const AttentionSettings& settings, int64_t prompt_tokens,
                             int64_t total_tokens) const {
  const int64_t window_blocks = BlocksFor(settings.streaming_window) + 1;
  const int64_t all = BlocksFor(std::max<int64_t>(0, total_tokens - kSinkTokens));
  // The least part that is worth its window.
  const int64_t least_lane = kSinkTokens + (window_blocks + 1) * kDenseBlockTokens;
  return {.dense_blocks = static_cast<int32_t>(1 + std::min(all, window_blocks)),
          .meta_blocks = 0,
          .segment_tokens = {},
          .lane_tokens = std::min(prompt_tokens, least_lane)};
}

KvBlocks StreamingPolicy::NeedWhile(const AttentionSettings& settings,
                                    const KvGrowth& growth) const {
  return {.dense = Need(settings, growth.prompt_tokens, growth.to).dense_blocks};
}

DeviceSpan<const DenseBlockId> StreamingPolicy::Blocks(const SequenceKv& sequence, size_t first,
                                                       int64_t num_tokens) const {
  return memory_.tables()
      .Dense(sequence.table_row)
      .subspan(first, static_cast<size_t>(BlocksFor(num_tokens)));
}

// --- Prompts

PromptPart StreamingPolicy::NextPart(const SequenceKv& sequence, int64_t max_tokens) const {
  PromptPart part{.begin = sequence.num_tokens};
  if (part.begin > 0) {
    const int64_t sink = std::min<int64_t>(kSinkTokens, part.begin);
    part.num_context = sink + std::max<int64_t>(0, part.begin - sequence.window_begin);
  }
  const int64_t room = std::min(kPartTokens, max_tokens - part.num_context);
  part.end = std::min(sequence.prompt_tokens, part.begin + room);
  if (part.end == sequence.prompt_tokens) return part;
  // The next part's context drops an even number of blocks.
  const int64_t window_blocks = BlocksFor(sequence.settings.streaming_window);
  const int64_t blocks = (part.end - kSinkTokens) / kDenseBlockTokens;
  const int64_t dropped = std::max<int64_t>(0, blocks - window_blocks) / 2 * 2;
  if (blocks > window_blocks) {
    part.end = kSinkTokens + (window_blocks + dropped) * kDenseBlockTokens;
  }
  return part;
}

absl::Status StreamingPolicy::PrepareLayer(SequenceKv& sequence, uint32_t layer,
                                           const LayerKv& kv) {
  if (layer == 0) RETURN_IF_ERROR(dense_.WriteTable(sequence));
  const int64_t context = sequence.part.num_context;
  if (context == 0) return absl::OkStatus();
  ReadDenseArgs read{.pool = dense_.pool(), .layer = layer, .out = kv};
  read.num_tokens = std::min<int64_t>(kSinkTokens, context);
  read.block_ids = Blocks(sequence, 0, read.num_tokens);
  RETURN_IF_ERROR(ops_.ReadDense(stream_, read));
  if (context <= kSinkTokens) return absl::OkStatus();
  read.num_tokens = context - kSinkTokens;
  read.block_ids = Blocks(sequence, 1, read.num_tokens);
  read.out = From(kv, kSinkTokens);
  return ops_.ReadDense(stream_, read);
}

AttentionWindow StreamingPolicy::WindowOf(const SequenceKv& sequence) const {
  return {.tokens = kDenseBlockTokens * (1 + BlocksFor(sequence.settings.streaming_window)),
          .step = kDenseBlockTokens,
          .always_seen = kSinkTokens};
}

absl::Status StreamingPolicy::TakeLayer(SequenceKv& sequence, uint32_t layer, const LayerKv& kv) {
  const int64_t end = sequence.part.end;
  const int64_t begin = StreamingWindowBegin(end, sequence.settings.streaming_window);
  FillDenseArgs fill{.in = kv, .pool = dense_.pool(), .layer = layer};
  if (sequence.part.begin == 0) {
    fill.num_tokens = std::min<int64_t>(kSinkTokens, end);
    fill.block_ids = Blocks(sequence, 0, fill.num_tokens);
    RETURN_IF_ERROR(ops_.FillDense(stream_, fill));
  }
  if (end > begin) {
    fill.first_token = RowOf(sequence, begin);
    fill.num_tokens = end - begin;
    fill.block_ids = Blocks(sequence, 1, fill.num_tokens);
    RETURN_IF_ERROR(ops_.FillDense(stream_, fill));
  }
  if (layer + 1 < dense_.pool().geometry.num_layers) return absl::OkStatus();
  sequence.window_begin = begin;
  sequence.num_tokens = end;
  return absl::OkStatus();
}

absl::StatusOr<bool> StreamingPolicy::LayerTaken(const SequenceKv& /*sequence*/,
                                                 uint32_t /*layer*/) {
  return true;  // All of it is on the compute stream: later work comes after it.
}

absl::StatusOr<bool> StreamingPolicy::FinishPrefill(SequenceKv& sequence) {
  return sequence.num_tokens == sequence.prompt_tokens;
}

// --- Steps

// The window moves where a block begins.
int64_t StreamingPolicy::RowsTogether(const SequenceKv& sequence) const {
  const int64_t behind_sink = std::max<int64_t>(0, sequence.num_tokens - kSinkTokens);
  return kDenseBlockTokens - behind_sink % kDenseBlockTokens;
}

absl::Status StreamingPolicy::BeginStep(std::span<SequenceKv* const> batch) {
  batch_.assign(batch.begin(), batch.end());
  for (SequenceKv* const sequence : batch) {
    const int64_t begin =
        StreamingWindowBegin(sequence->num_tokens, sequence->settings.streaming_window);
    if (begin == sequence->window_begin) continue;
    sequence->DropWindowBlocks(
        static_cast<uint32_t>((begin - sequence->window_begin) / kDenseBlockTokens));
    RETURN_IF_ERROR(dense_.WriteTable(*sequence));
  }
  return dense_.BeginStep(batch);
}

absl::Status StreamingPolicy::EndStep() {
  for (SequenceKv* const sequence : batch_) ++sequence->num_tokens;
  return absl::OkStatus();
}

absl::StatusOr<bool> StreamingPolicy::Release(SequenceKv& /*sequence*/) { return true; }

AttentionPolicy::BytesRead StreamingPolicy::LastStepBytes(size_t row) const {
  const SequenceKv& sequence = *batch_[row];
  const auto token_bytes = static_cast<double>(dense_.pool().geometry.token_bytes());
  const int64_t sink = std::min<int64_t>(kSinkTokens, sequence.num_tokens);
  const int64_t window = std::max<int64_t>(0, sequence.num_tokens - sequence.window_begin);
  return {.read = static_cast<double>(sink + window) * token_bytes,
          .full = static_cast<double>(sequence.num_tokens) * token_bytes};
}

}  // namespace retroinfer
