#include "gpu_worker/engine/sampler.h"

#include <algorithm>
#include <limits>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

constexpr uint32_t kInPrompt = 1u << 31;

bool HasPenalty(const SamplingParams& sampling) {
  return sampling.repetition_penalty != 1.0f || sampling.frequency_penalty != 0.0f ||
         sampling.presence_penalty != 0.0f;
}

template <typename T>
absl::Status UploadFirst(Device& device, Stream& stream, const std::vector<T>& host, size_t count,
                         const DeviceBuffer& buffer) {
  return device.Upload(stream, std::as_bytes(std::span(host).first(count)),
                       buffer.bytes().first(count * sizeof(T)));
}

template <typename T>
absl::Status DownloadFirst(Device& device, Stream& stream, const DeviceBuffer& buffer, size_t count,
                           std::vector<T>& host) {
  return device.Download(stream, buffer.bytes().first(count * sizeof(T)),
                         std::as_writable_bytes(std::span(host).first(count)));
}

}  // namespace

absl::StatusOr<SamplingState> SamplingState::Create(Device& device, Stream& stream,
                                                    const GenerationRequest& request,
                                                    std::span<const int32_t> eos_token_ids,
                                                    int64_t vocab_size) {
  const SamplingParams& sampling = request.sampling;
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
                .num_banned = 0};
  state.min_tokens_ = sampling.min_tokens;
  state.prompt_tokens_ = static_cast<int64_t>(request.prompt.size());
  if (sampling.min_tokens > 0) {
    state.banned_.assign(sampling.stop_token_ids.begin(), sampling.stop_token_ids.end());
    if (!sampling.ignore_eos) {
      state.banned_.insert(state.banned_.end(), eos_token_ids.begin(), eos_token_ids.end());
    }
    if (state.banned_.size() > kMaxBanned) {
      return absl::InvalidArgumentError(absl::StrCat("min_tokens with ", state.banned_.size(),
                                                     " stop and end tokens: at most ", kMaxBanned,
                                                     " can be held back"));
    }
  }
  if (HasPenalty(sampling)) {
    state.occurrences_.assign(static_cast<size_t>(vocab_size), 0);
    for (const int32_t token : request.prompt) {
      state.occurrences_[static_cast<size_t>(token)] |= kInPrompt;
    }
    const size_t bytes = state.occurrences_.size() * sizeof(uint32_t);
    ASSIGN_OR_RETURN(state.device_occurrences_,
                     device.Allocate(bytes, MemoryPurpose::kActivations));
    RETURN_IF_ERROR(UploadFirst(device, stream, state.occurrences_, state.occurrences_.size(),
                                state.device_occurrences_));
  }
  return state;
}

absl::Status SamplingState::Count(Device& device, Stream& stream, int32_t token) {
  ++num_generated_;
  if (occurrences_.empty()) return absl::OkStatus();
  const size_t index = static_cast<size_t>(token);
  ++occurrences_[index];
  return device.Upload(
      stream, std::as_bytes(std::span(occurrences_).subspan(index, 1)),
      device_occurrences_.bytes().subspan(index * sizeof(uint32_t), sizeof(uint32_t)));
}

Sampler::Sampler(Device& device, Ops& ops, Stream& stream, int32_t max_batch, int64_t vocab_size)
    : device_(device),
      ops_(ops),
      stream_(stream),
      max_batch_(max_batch),
      vocab_size_(vocab_size),
      host_rows_(static_cast<size_t>(max_batch)),
      host_banned_(static_cast<size_t>(max_batch) * kMaxBanned),
      host_pointers_(static_cast<size_t>(max_batch)),
      host_tokens_(static_cast<size_t>(max_batch)),
      host_top_tokens_(static_cast<size_t>(max_batch) * kMaxTopLogprobs),
      host_logprobs_(static_cast<size_t>(max_batch)),
      host_top_logprobs_(static_cast<size_t>(max_batch) * kMaxTopLogprobs),
      output_(static_cast<size_t>(max_batch)) {
  for (OutputToken& output : output_) output.alternatives.reserve(kMaxTopLogprobs);
}

absl::StatusOr<std::unique_ptr<Sampler>> Sampler::Create(Device& device, Ops& ops, Stream& stream,
                                                         int32_t max_batch, int64_t vocab_size) {
  auto sampler = absl::WrapUnique(new Sampler(device, ops, stream, max_batch, vocab_size));
  const size_t batch = static_cast<size_t>(max_batch);
  const size_t vocab = static_cast<size_t>(vocab_size);
  const auto allocate = [&device](size_t bytes, DeviceBuffer& buffer) -> absl::Status {
    ASSIGN_OR_RETURN(buffer, device.Allocate(bytes, MemoryPurpose::kActivations));
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(allocate(batch * vocab * sizeof(float), sampler->logits_));
  RETURN_IF_ERROR(allocate(batch * sizeof(SamplingRow), sampler->rows_));
  RETURN_IF_ERROR(allocate(batch * kMaxBanned * sizeof(int32_t), sampler->banned_));
  RETURN_IF_ERROR(allocate(batch * sizeof(const uint32_t*), sampler->occurrence_pointers_));
  RETURN_IF_ERROR(allocate(batch * sizeof(int32_t), sampler->tokens_));
  RETURN_IF_ERROR(allocate(batch * sizeof(float), sampler->logprobs_));
  RETURN_IF_ERROR(allocate(batch * kMaxTopLogprobs * sizeof(int32_t), sampler->top_tokens_));
  RETURN_IF_ERROR(allocate(batch * kMaxTopLogprobs * sizeof(float), sampler->top_logprobs_));
  RETURN_IF_ERROR(allocate(16 * vocab, sampler->scratch_));
  return sampler;
}

MatrixView Sampler::logits(int32_t batch) const {
  RI_CHECK(batch <= max_batch_);
  return MatrixView::Dense(logits_.bytes(), DType::kF32, batch, vocab_size_);
}

absl::StatusOr<std::span<const OutputToken>> Sampler::Sample(
    std::span<SamplingState* const> states) {
  const size_t batch = states.size();
  bool wants_logprobs = false;
  for (size_t i = 0; i < batch; ++i) {
    SamplingState& state = *states[i];
    host_rows_[i] = state.row_;
    host_rows_[i].position = state.prompt_tokens_ + state.num_generated_;
    if (state.num_generated_ < state.min_tokens_) {
      host_rows_[i].num_banned = static_cast<int32_t>(state.banned_.size());
      std::copy(state.banned_.begin(), state.banned_.end(), &host_banned_[i * kMaxBanned]);
    }
    host_pointers_[i] = state.device_occurrences_.as<uint32_t>().device_data();
    wants_logprobs |= state.row_.num_top_logprobs > 0;
  }
  RETURN_IF_ERROR(UploadFirst(device_, stream_, host_rows_, batch, rows_));
  RETURN_IF_ERROR(UploadFirst(device_, stream_, host_banned_, batch * kMaxBanned, banned_));
  RETURN_IF_ERROR(UploadFirst(device_, stream_, host_pointers_, batch, occurrence_pointers_));
  RETURN_IF_ERROR(ops_.Sampling(
      stream_, {.logits = logits(static_cast<int32_t>(batch)),
                .rows = rows_.as<const SamplingRow>().first(batch),
                .banned = banned_.as<const int32_t>().first(batch * kMaxBanned),
                .occurrences = occurrence_pointers_.as<const uint32_t* const>().first(batch),
                .tokens = tokens_.as<int32_t>().first(batch),
                .logprobs = logprobs_.as<float>().first(batch),
                .top_tokens = top_tokens_.as<int32_t>().first(batch * kMaxTopLogprobs),
                .top_logprobs = top_logprobs_.as<float>().first(batch * kMaxTopLogprobs),
                .scratch = scratch_.bytes()}));
  RETURN_IF_ERROR(DownloadFirst(device_, stream_, tokens_, batch, host_tokens_));
  RETURN_IF_ERROR(DownloadFirst(device_, stream_, logprobs_, batch, host_logprobs_));
  if (wants_logprobs) {
    const size_t tops = batch * kMaxTopLogprobs;
    RETURN_IF_ERROR(DownloadFirst(device_, stream_, top_tokens_, tops, host_top_tokens_));
    RETURN_IF_ERROR(DownloadFirst(device_, stream_, top_logprobs_, tops, host_top_logprobs_));
  }
  RETURN_IF_ERROR(stream_.Synchronize());
  for (size_t i = 0; i < batch; ++i) {
    OutputToken& output = output_[i];
    output.token = host_tokens_[i];
    output.logprob = host_logprobs_[i];
    output.alternatives.clear();
    for (int32_t j = 0; j < host_rows_[i].num_top_logprobs; ++j) {
      const size_t at = i * kMaxTopLogprobs + static_cast<size_t>(j);
      output.alternatives.push_back({host_top_tokens_[at], host_top_logprobs_[at]});
    }
  }
  return std::span<const OutputToken>(output_).first(batch);
}

}  // namespace retroinfer
