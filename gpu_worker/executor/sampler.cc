#include "gpu_worker/executor/sampler.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

constexpr uint32_t kInPrompt = 1u << 31;

bool HasPenalty(const SamplingParams& sampling) {
  return sampling.repetition_penalty != 1.0f || sampling.frequency_penalty != 0.0f ||
         sampling.presence_penalty != 0.0f;
}

// Of tokens with penalties, for each row; more are waited for.
constexpr size_t kCountsPerRow = 4;

size_t LogitsBytes(int32_t max_batch, int64_t vocab_size) {
  return static_cast<size_t>(max_batch) * static_cast<size_t>(vocab_size) * sizeof(float);
}

// In the order of the sampler's inputs and results.
std::array<size_t, 4> InputSizes(int32_t max_batch) {
  const auto batch = static_cast<size_t>(max_batch);
  return {batch * sizeof(SamplingRow), batch * sizeof(const SamplingBias*),
          batch * sizeof(const uint32_t*), batch * sizeof(const uint32_t*)};
}
std::vector<size_t> MaskSizes(int32_t max_batch, int64_t vocab_size) {
  return std::vector<size_t>(static_cast<size_t>(max_batch),
                             static_cast<size_t>(SamplingMaskWords(vocab_size)) * sizeof(uint32_t));
}
std::array<size_t, 5> ResultSizes(int32_t max_batch) {
  const auto batch = static_cast<size_t>(max_batch);
  return {batch * sizeof(int32_t), batch * sizeof(float), batch * sizeof(int32_t),
          batch * kMaxTopLogprobs * sizeof(int32_t), batch * kMaxTopLogprobs * sizeof(float)};
}

}  // namespace

absl::StatusOr<SamplingState> SamplingState::Create(Device& device, Stream& stream,
                                                    const SamplingParams& sampling,
                                                    std::span<const int32_t> prompt,
                                                    std::span<const int32_t> eos_token_ids,
                                                    int64_t vocab_size) {
  SamplingState state;
  state.row_ = {.temperature = sampling.temperature,
                .top_k = sampling.top_k,
                .top_p = sampling.top_p,
                .min_p = sampling.min_p,
                .repetition_penalty = sampling.repetition_penalty,
                .frequency_penalty = sampling.frequency_penalty,
                .presence_penalty = sampling.presence_penalty,
                .seed = sampling.seed,
                .position = 0,
                .num_top_logprobs = std::clamp(sampling.num_logprobs, 0, kMaxTopLogprobs),
                .num_biases = 0,
                .wants_rank = sampling.num_logprobs >= 0 ? 1 : 0};
  state.min_tokens_ = sampling.min_tokens;
  state.prompt_tokens_ = static_cast<int64_t>(prompt.size());
  state.SetBiases(sampling, eos_token_ids);
  if (sampling.constraint != nullptr) state.matcher_.emplace(sampling.constraint);
  if (!state.biases_.empty()) {
    const auto image = std::as_bytes(std::span(state.biases_));
    ASSIGN_OR_RETURN(state.device_biases_,
                     device.Allocate(image.size(), MemoryPurpose::kActivations));
    RETURN_IF_ERROR(device.Upload(stream, image, state.device_biases_.bytes()));
  }
  if (HasPenalty(sampling)) {
    state.occurrences_.assign(static_cast<size_t>(vocab_size), 0);
    for (const int32_t token : prompt) {
      state.occurrences_[static_cast<size_t>(token)] |= kInPrompt;
    }
    const size_t bytes = state.occurrences_.size() * sizeof(uint32_t);
    ASSIGN_OR_RETURN(state.device_occurrences_,
                     device.Allocate(bytes, MemoryPurpose::kActivations));
    RETURN_IF_ERROR(device.Upload(stream, std::as_bytes(std::span(state.occurrences_)),
                                  state.device_occurrences_.bytes()));
  }
  return state;
}

void SamplingState::SetBiases(const SamplingParams& sampling,
                              std::span<const int32_t> eos_token_ids) {
  std::map<int32_t, float> with_bans = sampling.logit_bias;
  if (sampling.min_tokens > 0) {
    constexpr float kBan = -std::numeric_limits<float>::infinity();
    for (const int32_t token : sampling.stop_token_ids) with_bans[token] = kBan;
    if (!sampling.ignore_eos) {
      for (const int32_t token : eos_token_ids) with_bans[token] = kBan;
    }
    for (const auto& [token, bias] : with_bans) biases_.push_back({token, bias});
    num_biases_with_bans_ = biases_.size();
  }
  for (const auto& [token, bias] : sampling.logit_bias) biases_.push_back({token, bias});
}

absl::Status SamplingState::Count(int32_t token) {
  ++num_generated_;
  if (!occurrences_.empty()) {
    ++occurrences_[static_cast<size_t>(token)];
    uncounted_.push_back(token);
  }
  if (!matcher_.has_value()) return absl::OkStatus();
  RETURN_IF_ERROR(matcher_->status());
  if (matcher_->Accept(token)) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(
      "token ", token, " was drawn behind ", num_generated_ - 1,
      " tokens, which the constraint does not allow: the model gives no token that may follow"));
}

Sampler::Sampler(Device& device, ModelOps& ops, Stream& stream, int32_t max_batch,
                 int64_t vocab_size)
    : device_(device),
      ops_(ops),
      stream_(stream),
      max_batch_(max_batch),
      vocab_size_(vocab_size),
      output_(static_cast<size_t>(max_batch)) {
  matchers_.reserve(static_cast<size_t>(max_batch));
  mask_rows_.reserve(static_cast<size_t>(max_batch));
  matchers_ahead_.reserve(static_cast<size_t>(max_batch));  // rows point into it
  for (OutputToken& output : output_) output.alternatives.reserve(kMaxTopLogprobs);
}

MemoryNeed Sampler::MemoryOf(int32_t max_batch, int64_t vocab_size) {
  return {MemoryPurpose::kActivations, LogitsBytes(max_batch, vocab_size) +
                                           SamplingScratchBytes(max_batch, vocab_size) +
                                           StagedArrays::Bytes(InputSizes(max_batch)) +
                                           StagedArrays::Bytes(MaskSizes(max_batch, vocab_size)) +
                                           StagedArrays::Bytes(ResultSizes(max_batch))};
}

absl::StatusOr<std::unique_ptr<Sampler>> Sampler::Create(Device& device, ModelOps& ops,
                                                         Stream& stream, int32_t max_batch,
                                                         int64_t vocab_size) {
  auto sampler = absl::WrapUnique(new Sampler(device, ops, stream, max_batch, vocab_size));
  ASSIGN_OR_RETURN(sampler->logits_, device.Allocate(LogitsBytes(max_batch, vocab_size),
                                                     MemoryPurpose::kActivations));
  ASSIGN_OR_RETURN(sampler->scratch_, device.Allocate(SamplingScratchBytes(max_batch, vocab_size),
                                                      MemoryPurpose::kActivations));
  ASSIGN_OR_RETURN(sampler->inputs_, StagedArrays::Create(device, InputSizes(max_batch),
                                                          MemoryPurpose::kActivations));
  ASSIGN_OR_RETURN(sampler->masks_, StagedArrays::Create(device, MaskSizes(max_batch, vocab_size),
                                                         MemoryPurpose::kActivations));
  ASSIGN_OR_RETURN(sampler->results_, StagedArrays::Create(device, ResultSizes(max_batch),
                                                           MemoryPurpose::kActivations));
  ASSIGN_OR_RETURN(sampler->sampled_, device.CreateEvent());
  ASSIGN_OR_RETURN(sampler->counts_, device.AllocateHost(static_cast<size_t>(max_batch) *
                                                         kCountsPerRow * sizeof(uint32_t)));
  return sampler;
}

MatrixView Sampler::logits(int32_t batch) const {
  RI_CHECK(batch <= max_batch_);
  return MatrixView::Dense(logits_.bytes(), DType::kF32, batch, vocab_size_);
}

absl::Status Sampler::UploadCounts(SamplingState& state) {
  const std::span<uint32_t> words = counts_.as<uint32_t>();
  for (const int32_t token : state.uncounted_) {
    if (num_counts_ == words.size()) {
      RETURN_IF_ERROR(stream_.Synchronize());
      num_counts_ = 0;
    }
    const std::span<uint32_t> word = words.subspan(num_counts_++, 1);
    const size_t index = static_cast<size_t>(token);
    word[0] = state.occurrences_[index];
    RETURN_IF_ERROR(device_.Upload(
        stream_, std::as_bytes(word),
        state.device_occurrences_.bytes().subspan(index * sizeof(uint32_t), sizeof(uint32_t))));
  }
  state.uncounted_.clear();
  return absl::OkStatus();
}

absl::Status Sampler::Prepare(std::span<SamplingState* const> states,
                              std::span<const int32_t> forced, std::span<const int32_t> fed) {
  RI_CHECK(forced.empty() || forced.size() == states.size());
  RI_CHECK(fed.empty() || fed.size() == states.size());
  RI_CHECK(states.size() <= static_cast<size_t>(max_batch_));
  const std::span<SamplingRow> rows = inputs_.Host<SamplingRow>(kRows);
  batch_ = states.size();
  wants_alternatives_ = false;
  matchers_.clear();
  mask_rows_.clear();
  matchers_ahead_.clear();
  size_t first = 0;  // row of the state that draws, if any does
  for (size_t i = 0; i < batch_; ++i) {
    SamplingState& state = *states[i];
    const bool is_drawn = forced.empty() || forced[i] < 0;
    // Tokens that are given are the prompt's, not generated ones.
    if (states[first] != &state || (i > 0 && !forced.empty() && forced[i - 1] >= 0)) first = i;
    std::span<const int32_t> ahead;
    if (is_drawn && !fed.empty()) ahead = fed.subspan(first + 1, i - first);
    RETURN_IF_ERROR(UploadCounts(state));
    DescribeRow(i, state, ahead);
    wants_alternatives_ |= state.row_.num_top_logprobs > 0;
    rows[i].forced_token = is_drawn ? -1 : forced[i];
    inputs_.Host<const uint32_t*>(kMasks)[i] = nullptr;
    if (is_drawn && state.matcher_.has_value()) FollowConstraint(i, state, ahead);
  }
  SetShape();
  return absl::OkStatus();
}

void Sampler::DescribeRow(size_t index, const SamplingState& state,
                          std::span<const int32_t> ahead) {
  RI_CHECK(ahead.size() <= size_t{kMaxSamplingAhead});
  const int64_t generated = state.num_generated_ + std::ssize(ahead);
  SamplingRow& row = inputs_.Host<SamplingRow>(kRows)[index];
  row = state.row_;
  row.position = state.prompt_tokens_ + generated;
  row.num_ahead = static_cast<int32_t>(ahead.size());
  std::copy(ahead.begin(), ahead.end(), row.ahead);
  const size_t first = state.first_bias(generated);
  row.num_biases = static_cast<int32_t>(state.end_bias(generated) - first);
  inputs_.Host<const SamplingBias*>(kBiases)[index] =
      row.num_biases == 0 ? nullptr
                          : state.device_biases_.as<const SamplingBias>().device_data() + first;
  inputs_.Host<const uint32_t*>(kOccurrences)[index] =
      state.device_occurrences_.as<uint32_t>().device_data();
}

// A row behind a token that the constraint does not allow needs no mask: that token is not drawn.
void Sampler::FollowConstraint(size_t row, SamplingState& state, std::span<const int32_t> ahead) {
  constraint::Matcher* matcher = &*state.matcher_;
  if (!ahead.empty()) {
    constraint::Matcher& copy = matchers_ahead_.emplace_back(*matcher);
    matcher = &copy;
    const bool are_allowed =
        std::ranges::all_of(ahead, [&copy](int32_t token) { return copy.Accept(token); });
    if (!are_allowed) return;
  }
  inputs_.Host<const uint32_t*>(kMasks)[row] =
      masks_.On<const uint32_t>(matchers_.size()).device_data();
  matchers_.push_back(matcher);
  mask_rows_.push_back(row);
}

bool Sampler::IsDrawn(size_t row) const {
  const auto found = std::ranges::find(mask_rows_, row);
  if (found == mask_rows_.end()) return true;
  const constraint::Matcher* const matcher =
      matchers_[static_cast<size_t>(found - mask_rows_.begin())];
  const bool is_first = std::ranges::none_of(
      matchers_ahead_, [matcher](const constraint::Matcher& one) { return &one == matcher; });
  return is_first || matcher->status().ok();
}

void Sampler::SetShape() { shape_ = {batch_, wants_alternatives_ ? 1u : 0u, matchers_.size()}; }

void Sampler::FillMasks() {
  for (size_t i = 0; i < matchers_.size(); ++i) matchers_[i]->Fill(masks_.Host<uint32_t>(i));
}

absl::Status Sampler::Enqueue() {
  RETURN_IF_ERROR(inputs_.Upload(stream_));
  if (!matchers_.empty()) RETURN_IF_ERROR(masks_.Upload(stream_, matchers_.size()));
  const size_t tops = batch_ * kMaxTopLogprobs;
  RETURN_IF_ERROR(ops_.Sampling(
      stream_, {.logits = logits(static_cast<int32_t>(batch_)),
                .rows = inputs_.On<const SamplingRow>(kRows).first(batch_),
                .biases = inputs_.On<const SamplingBias* const>(kBiases).first(batch_),
                .occurrences = inputs_.On<const uint32_t* const>(kOccurrences).first(batch_),
                .masks = inputs_.On<const uint32_t* const>(kMasks).first(batch_),
                .tokens = results_.On<int32_t>(kTokens).first(batch_),
                .logprobs = results_.On<float>(kLogprobs).first(batch_),
                .top_tokens = results_.On<int32_t>(kTopTokens).first(tops),
                .top_logprobs = results_.On<float>(kTopLogprobs).first(tops),
                .ranks = results_.On<int32_t>(kRanks).first(batch_),
                .scratch = scratch_.bytes()}));
  return results_.Download(stream_, wants_alternatives_ ? kTopLogprobs + 1 : kRanks + 1);
}

absl::Status Sampler::Wait() {
  RETURN_IF_ERROR(stream_.Record(*sampled_));
  const int64_t begun = absl::GetCurrentTimeNanos();
  RETURN_IF_ERROR(device_.Synchronize(*sampled_));
  waited_ns_ += absl::GetCurrentTimeNanos() - begun;
  num_counts_ = 0;
  return absl::OkStatus();
}

std::span<const OutputToken> Sampler::Results() {
  const auto rows = inputs_.Host<const SamplingRow>(kRows);
  const auto top_tokens = results_.Host<const int32_t>(kTopTokens);
  const auto top_logprobs = results_.Host<const float>(kTopLogprobs);
  for (size_t i = 0; i < batch_; ++i) {
    OutputToken& output = output_[i];
    output.token = results_.Host<const int32_t>(kTokens)[i];
    output.logprob = results_.Host<const float>(kLogprobs)[i];
    output.rank = rows[i].wants_rank != 0 ? results_.Host<const int32_t>(kRanks)[i] : 0;
    output.alternatives.clear();
    for (int32_t j = 0; j < rows[i].num_top_logprobs; ++j) {
      const size_t at = i * kMaxTopLogprobs + static_cast<size_t>(j);
      output.alternatives.push_back({top_tokens[at], top_logprobs[at]});
    }
  }
  return std::span<const OutputToken>(output_).first(batch_);
}

absl::StatusOr<std::span<const OutputToken>> Sampler::Sample(std::span<SamplingState* const> states,
                                                             std::span<const int32_t> forced,
                                                             std::span<const int32_t> fed) {
  RETURN_IF_ERROR(Prepare(states, forced, fed));
  return Run();
}

absl::StatusOr<std::span<const OutputToken>> Sampler::Measure(std::span<const int32_t> tokens,
                                                              int32_t num_top_logprobs) {
  const std::span<SamplingRow> rows = inputs_.Host<SamplingRow>(kRows);
  RI_CHECK(tokens.size() <= rows.size());
  batch_ = tokens.size();
  wants_alternatives_ = num_top_logprobs > 0;
  for (size_t i = 0; i < batch_; ++i) {
    rows[i] = {.temperature = 0,
               .num_top_logprobs = std::min(num_top_logprobs, kMaxTopLogprobs),
               .forced_token = tokens[i],
               .wants_rank = 1};
    inputs_.Host<const SamplingBias*>(kBiases)[i] = nullptr;
    inputs_.Host<const uint32_t*>(kOccurrences)[i] = nullptr;
    inputs_.Host<const uint32_t*>(kMasks)[i] = nullptr;
  }
  matchers_.clear();
  mask_rows_.clear();
  SetShape();
  return Run();
}

absl::StatusOr<std::span<const OutputToken>> Sampler::Run() {
  FillMasks();
  RETURN_IF_ERROR(Enqueue());
  RETURN_IF_ERROR(Wait());
  return Results();
}

}  // namespace retroinfer
