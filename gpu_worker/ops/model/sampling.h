// Chooses the next token of every sequence of a batch from its logits.
//
// Order (as the field does it): biases, repetition penalty, frequency and presence penalty, the
// mask of a constraint, temperature, then top-k, top-p and min-p on the softmax, then a draw with a
// counter-based generator: the value depends on (seed, position) alone, so a request gives the same
// tokens in any batch. temperature 0 is greedy: the lowest token id among the largest logits.
// Log-probabilities are of the distribution that the logits came with, before all of that; so are
// ranks: 1 for the token that greedy takes from these logits, 2 for the next one, equal logits by
// their ids. A row whose every logit is minus infinity then gets token 0, allowed or not.
//
// A row can be told its token instead: that is not drawn but measured.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu_worker/ops/matrix.h"

namespace retroinfer {

// Tokens that a row may be drawn behind and that its occurrences do not count.
inline constexpr int32_t kMaxSamplingAhead = 8;

struct SamplingRow {
  float temperature = 1.0f;         // >= 0
  int32_t top_k = 0;                // 0: off
  float top_p = 1.0f;               // (0, 1]
  float min_p = 0.0f;               // [0, 1]
  float repetition_penalty = 1.0f;  // > 0
  float frequency_penalty = 0.0f;
  float presence_penalty = 0.0f;
  uint64_t seed = 0;
  int64_t position = 0;          // of the token to draw
  int32_t num_top_logprobs = 0;  // 0 to kMaxTopLogprobs
  int32_t num_biases = 0;        // leading entries of the row's biases in use
  int32_t forced_token = -1;     // in the vocabulary: taken whatever the logits are; -1: drawn
  int32_t wants_rank = 0;        // not 0: fill SamplingArgs::ranks
  // Generated tokens that the row's occurrences do not have yet: rows of one sequence that share a
  // step are drawn behind each other. Leading entries in use.
  int32_t num_ahead = 0;
  int32_t ahead[kMaxSamplingAhead] = {};
};

// Added to the logit of a token; minus infinity bans it. A token outside the vocabulary is ignored.
struct SamplingBias {
  int32_t token;
  float bias;  // not NaN
};

inline constexpr int32_t kMaxTopLogprobs = 20;

// A backend may look at a row in parts of so many logits, and keep 32 bytes of each in scratch.
inline constexpr int64_t kSamplingPartSize = 8192;

// Words of a row's mask: bit t % 32 of word t / 32 says whether token t is allowed. Bits behind the
// vocabulary are ignored.
constexpr int64_t SamplingMaskWords(int64_t vocab) { return (vocab + 31) / 32; }

constexpr int64_t NumSamplingParts(int64_t vocab) {
  return (vocab + kSamplingPartSize - 1) / kSamplingPartSize;
}
constexpr size_t SamplingPartBytes(int64_t batch, int64_t vocab) {
  return static_cast<size_t>(batch * NumSamplingParts(vocab)) * 32;
}
// The parts; behind them, a row of logits as they are after biases, penalties and the mask for each
// row that has any of them.
constexpr size_t SamplingScratchBytes(int64_t batch, int64_t vocab) {
  return SamplingPartBytes(batch, vocab) + static_cast<size_t>(batch * vocab) * sizeof(float);
}

struct SamplingArgs {
  // [batch, vocab] f32. NaN counts as minus infinity; a backend may write it back so.
  MatrixView logits;
  DeviceSpan<const SamplingRow> rows;  // [batch]
  // num_biases entries for each row, no token twice; a null pointer for a row without any.
  DeviceSpan<const SamplingBias* const> biases;  // [batch], device pointers; or empty
  // Occurrences for the penalties: bit 31 set if the token is in the prompt, bits 0-30 count it in
  // the generated text, but SamplingRow::ahead. Rows of `vocab`; a null pointer for a row without
  // penalties.
  DeviceSpan<const uint32_t* const> occurrences;  // [batch], device pointers
  // SamplingMaskWords() for each row; a null pointer for a row that may get any token.
  DeviceSpan<const uint32_t* const> masks;  // [batch], device pointers; or empty
  DeviceSpan<int32_t> tokens;               // [batch]
  DeviceSpan<float> logprobs;               // [batch], of the chosen token
  DeviceSpan<int32_t> top_tokens;           // [batch, kMaxTopLogprobs]
  DeviceSpan<float> top_logprobs;           // [batch, kMaxTopLogprobs]
  DeviceSpan<int32_t> ranks;                // [batch], of the chosen token where wanted
  DeviceSpan<std::byte> scratch;            // SamplingScratchBytes()
};

}  // namespace retroinfer
