#include "gpu_worker/attention/wave_policy.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer {

absl::StatusOr<std::unique_ptr<WavePolicy>> WavePolicy::Create(int32_t max_batch, Parts parts) {
  if (static_cast<size_t>(max_batch) > AbsentPages::kMaxRows) {
    return absl::InvalidArgumentError(absl::StrCat(
        "policy wave takes steps of at most ", AbsentPages::kMaxRows, " rows, not ", max_batch));
  }
  ASSIGN_OR_RETURN(
      DenseZoneBatch dense,
      DenseZoneBatch::Create(*parts.device, *parts.ops, *parts.stream, parts.memory->dense_pool(),
                             parts.memory->tables(), max_batch));
  parts.decode->Observe(parts.observer);
  auto policy = absl::WrapUnique(new WavePolicy(std::move(parts), std::move(dense)));
  policy->batch_.reserve(static_cast<size_t>(max_batch));
  policy->decode_batch_.reserve(static_cast<size_t>(max_batch));
  return policy;
}

KvNeed WavePolicy::Need(const AttentionSettings& /*settings*/, int64_t prompt_tokens,
                        int64_t total_tokens) const {
  return segments_.Need(prompt_tokens, total_tokens);
}

KvBlocks WavePolicy::NeedWhile(const AttentionSettings& /*settings*/,
                               const KvGrowth& growth) const {
  return segments_.NeedWhile(growth);
}

absl::Status WavePolicy::TakeLayer(SequenceKv& sequence, uint32_t layer, const LayerKv& kv) {
  if (layer == 0) {
    RETURN_IF_ERROR(segments_.Begin(sequence));
    RETURN_IF_ERROR(dense_.WriteTable(sequence));
  }
  // The window lies behind the prompt's segments.
  const bool is_last_part = sequence.part.end == sequence.prompt_tokens;
  if (is_last_part) RETURN_IF_ERROR(dense_.FillFromPrompt(sequence, layer, kv));
  return segments_.TakeLayer(sequence, layer, kv);
}

absl::StatusOr<bool> WavePolicy::LayerTaken(const SequenceKv& sequence, uint32_t layer) {
  return segments_.LayerTaken(sequence, layer);
}

// Without segments of its own to build, nothing in the background reads its layers.
bool WavePolicy::TakesInOrder(const SequenceKv& sequence) const {
  return segments_.NothingToBuild(sequence);
}

absl::StatusOr<bool> WavePolicy::FinishPrefill(SequenceKv& sequence) {
  ASSIGN_OR_RETURN(const bool is_built, segments_.PromptIsBuilt(sequence));
  if (!is_built) return false;
  segments_.FinishPrompt(sequence);
  sequence.num_tokens = sequence.prompt_tokens;
  return true;
}

absl::StatusOr<bool> WavePolicy::ReadyForStep(const SequenceKv& sequence) {
  return segments_.ReadyForStep(sequence);
}

bool WavePolicy::GoesLive(const SequenceKv& sequence) const { return segments_.GoesLive(sequence); }

// What a step tells may widen the next one.
int64_t WavePolicy::RowsTogether(const SequenceKv& sequence) const {
  if (sequence.settings.max_unseen_mass > 0) return 1;
  return segments_.TokensOfOneIndex(sequence);
}

// A zone that grows with what a step tells is each row's own, and pages that codes choose are.
int64_t WavePolicy::RowsOfRun(const SequenceKv& sequence) const {
  const bool shares =
      sequence.settings.max_unseen_mass == 0 && segments_.settings().candidate_ratio == 0;
  return shares ? sequence.settings.tail_run : 1;
}

// A segment that goes live takes tokens of the prompt out of the window; and a zone that has grown
// with one continuation would be another's.
bool WavePolicy::CanRewind(const AttentionSettings& settings, int64_t prompt_tokens,
                           int64_t total_tokens) const {
  return settings.max_unseen_mass == 0 && !segments_.AnyGoesLive(prompt_tokens, total_tokens);
}

SelectionRatios WavePolicy::RatiosOf(const SequenceKv& sequence) const {
  const AttentionSettings& settings = sequence.settings;
  const double width = sequence.retrieval_width.factor();
  const double least = width * segments_.settings().min_retrieved;
  return {.retrieval = std::min(1.0, width * settings.retrieval_ratio),
          .estimation = settings.estimation_ratio,
          .min_retrieved = static_cast<int32_t>(std::ceil(least)),
          .ranking = settings.ranking,
          .candidates = segments_.settings().candidate_ratio,
          .min_candidates = segments_.settings().min_candidates};
}

// Weighing what is unseen takes 3 to 8 % of a step, and a step of another shape than the last one
// more (docs/benchmarks.md, "The unseen mass"), so not every step does it:
// a sequence's first, those of sequences with a limit, and one in so many of all.
// Rows of runs are not weighed.
bool WavePolicy::WeighsUnseen(std::span<SequenceKv* const> batch) {
  constexpr uint64_t kStepsAWeighing = 16;
  const bool is_due = num_steps_++ % kStepsAWeighing == 0;
  const auto is_weighed = [this](const SequenceKv* sequence) {
    return sequence->given_left() == 0 || RowsOfRun(*sequence) == 1;
  };
  if (is_due) return std::ranges::any_of(batch, is_weighed);
  return std::ranges::any_of(batch, [&](const SequenceKv* sequence) {
    return is_weighed(sequence) &&
           (sequence->settings.max_unseen_mass > 0 || !sequence->was_weighed);
  });
}

namespace {

// Whether most rows are further tokens of prompts' ends (SequenceKv::given_tokens): neighbours that
// retrieve much the same pages, of a text that may have been cold until now. A step of one row a
// sequence, or of a few drafts, attends to its few misses faster in the arena.
bool FetchesFirst(std::span<SequenceKv* const> batch) {
  size_t given = 0;
  for (size_t i = 1; i < batch.size(); ++i) {
    if (batch[i] == batch[i - 1] && batch[i]->given_left() > 0) ++given;
  }
  return 2 * given >= batch.size() && given > 0;
}

// Whether the live indexes of both are the same blocks: tails behind one text.
bool ShareAnIndex(const SequenceKv& a, const SequenceKv& b) {
  if (&a == &b) return true;
  const auto live = [](const SequenceKv& sequence) {
    return std::span(sequence.meta_blocks).first(static_cast<size_t>(sequence.num_indexed_blocks));
  };
  return std::ranges::equal(live(a), live(b));
}

}  // namespace

// A run of one row is none: the row attends as any other.
void WavePolicy::FindRuns(std::span<SequenceKv* const> batch) {
  runs_.clear();
  int64_t number = 0;  // of the row's run, among those of its sequence
  for (size_t i = 0, ahead = 0; i < batch.size(); ++i) {
    const SequenceKv& sequence = *batch[i];
    const bool is_first = i == 0 || batch[i] != batch[i - 1];
    ahead = is_first ? 0 : ahead + 1;
    const int64_t size = RowsOfRun(sequence);
    if (size == 1 || static_cast<int64_t>(ahead) >= sequence.given_left()) continue;
    const int64_t given =
        sequence.num_tokens + static_cast<int64_t>(ahead) - sequence.prompt_tokens;
    const bool goes_on = !is_first && given / size == number;
    number = given / size;
    if (goes_on) {
      ++runs_.back().num_rows;
    } else {
      runs_.push_back({.first_row = static_cast<int32_t>(i), .num_rows = 1});
    }
  }
  std::erase_if(runs_, [](const RowRun& run) { return run.num_rows == 1; });
}

absl::Status WavePolicy::BeginStep(std::span<SequenceKv* const> batch) {
  batch_.assign(batch.begin(), batch.end());
  decode_batch_.clear();
  for (SequenceKv* const sequence : batch) {
    ASSIGN_OR_RETURN(const bool moved, segments_.BeginStep(*sequence));
    if (moved) RETURN_IF_ERROR(dense_.WriteTable(*sequence));
    decode_batch_.push_back(
        {.index = {.block_ids = parts_.memory->tables().Meta(sequence->table_row).device_data(),
                   .num_blocks = sequence->num_indexed_blocks},
         .ratios = RatiosOf(*sequence)});
  }
  // One list for all, by which kernels see that rows may share what they read.
  if (std::ranges::all_of(batch, [&](auto* other) { return ShareAnIndex(*batch[0], *other); })) {
    for (WaveDecode::Sequence& row : decode_batch_) row.index = decode_batch_.front().index;
  }
  RETURN_IF_ERROR(dense_.BeginStep(batch));
  const bool weighs = WeighsUnseen(batch);
  FindRuns(batch);
  RETURN_IF_ERROR(parts_.decode->BeginStep(decode_batch_, dense_.zones(),
                                           {.weighs_unseen = weighs,
                                            .fetches_first = !runs_.empty() || FetchesFirst(batch),
                                            .runs = runs_}));
  for (SequenceKv* const sequence : batch) {
    sequence->was_weighed |= weighs && (sequence->given_left() == 0 || RowsOfRun(*sequence) == 1);
  }
  if (parts_.observer != nullptr) {
    parts_.observer->BeginStep(batch, parts_.decode->max_retrieved());
  }
  return absl::OkStatus();
}

absl::Status WavePolicy::UploadStep() {
  RETURN_IF_ERROR(dense_.UploadStep());
  return parts_.decode->UploadStep();
}

absl::Status WavePolicy::DecodeLayer(uint32_t layer, const AttentionForm& form,
                                     const MatrixView& queries, const MatrixView& keys,
                                     const MatrixView& values, const MatrixView& out) {
  RETURN_IF_ERROR(dense_.Append(layer, keys, values));
  return parts_.decode->Layer(layer, form, queries, out);
}

absl::Status WavePolicy::EndStep() {
  for (SequenceKv* const sequence : batch_) ++sequence->num_tokens;
  return parts_.decode->EndStep();
}

AttentionPolicy::BytesRead WavePolicy::LastStepBytes(size_t row) const {
  const SequenceKv& sequence = *batch_[row];
  const double token_bytes = static_cast<double>(dense_.pool().geometry.token_bytes());
  const double steady =
      static_cast<double>(sequence.num_tokens - sequence.window_begin + kSinkTokens);
  return {.read = steady * token_bytes + parts_.decode->LastStepIndexBytes(row),
          .full = static_cast<double>(sequence.num_tokens) * token_bytes};
}

void WavePolicy::LearnFromStep() {
  for (size_t row = 0; row < batch_.size(); ++row) {
    const double limit = batch_[row]->settings.max_unseen_mass;
    if (limit == 0) continue;
    const std::optional<double> unseen = parts_.decode->LastStepUnseen(row);
    if (unseen.has_value()) batch_[row]->retrieval_width.Follow(*unseen, limit);
  }
}

absl::StatusOr<bool> WavePolicy::Release(SequenceKv& sequence) {
  if (parts_.observer != nullptr) parts_.observer->Release(sequence);
  return segments_.Release(sequence);
}

}  // namespace retroinfer
