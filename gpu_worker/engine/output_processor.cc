#include "gpu_worker/engine/output_processor.h"

#include <algorithm>
#include <utility>

namespace retroinfer {
namespace {

std::vector<int32_t> EndTokens(const SamplingParams& sampling, std::span<const int32_t> eos) {
  std::vector<int32_t> tokens = sampling.stop_token_ids;
  if (!sampling.ignore_eos) tokens.insert(tokens.end(), eos.begin(), eos.end());
  return tokens;
}

}  // namespace

OutputProcessor::OutputProcessor(const Tokenizer& tokenizer, const SamplingParams& sampling,
                                 std::span<const int32_t> eos_token_ids)
    : stop_(sampling.stop),
      end_tokens_(EndTokens(sampling, eos_token_ids)),
      min_tokens_(sampling.min_tokens),
      include_stop_(sampling.include_stop_str_in_output),
      detokenizer_(tokenizer, sampling.skip_special_tokens, sampling.shown_special_ids),
      matcher_(sampling.stop) {}

bool OutputProcessor::IsEndToken(int32_t token) const {
  return std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end();
}

bool OutputProcessor::Append(const OutputToken& token) {
  ++num_tokens_;
  delta_.tokens.push_back(token);
  const bool end_token = num_tokens_ > min_tokens_ && IsEndToken(token.token);
  if (end_token) {
    matched_token_ = token.token;
    if (!include_stop_) return true;
  }
  const std::string text = detokenizer_.Append(token.token);
  const bool may_stop = num_tokens_ >= min_tokens_ && !end_token;
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
