#include "gpu_worker/engine/output_processor.h"

#include <utility>

namespace retroinfer {
OutputProcessor::OutputProcessor(const Tokenizer& tokenizer, const SamplingParams& sampling,
                                 std::span<const int32_t> eos_token_ids)
    : stop_(sampling.stop),
      stop_tokens_(sampling, eos_token_ids),
      min_tokens_(sampling.min_tokens),
      include_stop_(sampling.include_stop_str_in_output),
      detokenizer_(tokenizer, sampling.skip_special_tokens, sampling.shown_special_ids),
      matcher_(sampling.stop) {}

bool OutputProcessor::Append(const OutputToken& token) {
  delta_.tokens.push_back(token);
  const bool end_token = stop_tokens_.Append(token.token);
  if (end_token && !include_stop_) return true;
  const std::string text = detokenizer_.Append(token.token);
  const bool may_stop = stop_tokens_.num_tokens() >= min_tokens_ && !end_token;
  const int stop = matcher_.Scan(text, may_stop, &delta_.text);
  if (stop >= 0) {
    matched_stop_ = stop_[static_cast<size_t>(stop)];
    if (include_stop_) delta_.text += matched_stop_;
    return true;
  }
  return end_token;
}

void OutputProcessor::Flush() {
  if (!matched_stop_.empty()) return;
  matcher_.Scan(detokenizer_.Flush(), false, &delta_.text);
  matcher_.Flush(&delta_.text);
}

OutputDelta OutputProcessor::TakeDelta() { return std::exchange(delta_, {}); }

}  // namespace retroinfer
