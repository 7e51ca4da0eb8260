#include "gpu_worker/server/response_queue.h"

#include <utility>

#include "gpu_worker/server/proto_time.h"

namespace retroinfer {
namespace {

namespace v1 = generation::v1;

constexpr size_t kEventBytes = 64;  // ids, counts and framing of one event

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kCancelled:
      return v1::FINISH_REASON_CANCELLED;
    case FinishReason::kDeadline:
      return v1::FINISH_REASON_DEADLINE;
    case FinishReason::kError:
    case FinishReason::kRefused:
      break;  // becomes a status, never an event
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

// Appends `delta` to `chunk`; returns the bytes that it adds.
size_t AppendDelta(const OutputDelta& delta, const ResponseQueue::Settings& settings,
                   v1::OutputChunk* chunk) {
  const auto bytes_of = [&settings](int32_t token) {
    return settings.tokenizer == nullptr ? std::string()
                                         : std::string(settings.tokenizer->TokenBytes(token));
  };
  size_t bytes = delta.text.size();
  chunk->mutable_text()->append(delta.text);
  for (const OutputToken& token : delta.tokens) {
    chunk->add_token_ids(token.token);
    bytes += 4;
    if (!settings.want_logprobs) continue;
    v1::PositionLogprobs* position = chunk->add_logprobs();
    position->set_logprob(token.logprob);
    position->set_rank(token.rank);
    position->set_token_bytes(bytes_of(token.token));
    bytes += position->token_bytes().size();
    for (const TokenLogprob& alternative : token.alternatives) {
      v1::TokenLogprob* out = position->add_alternatives();
      out->set_token_id(alternative.token);
      out->set_logprob(alternative.logprob);
      out->set_token_bytes(bytes_of(alternative.token));
      bytes += out->token_bytes().size();
    }
    bytes += 8 + 12 * token.alternatives.size();
  }
  return bytes;
}

}  // namespace

ResponseQueue::Entry* ResponseQueue::LastOf(int index) {
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    if (entry->event.index() == index) return &*entry;
  }
  return nullptr;
}

ResponseQueue::Entry& ResponseQueue::Append(int index) {
  Entry& entry = entries_.emplace_back();
  entry.event.set_request_id(settings_.request_id);
  entry.event.set_index(index);
  entry.bytes = kEventBytes;
  bytes_ += kEventBytes;
  return entry;
}

void ResponseQueue::AddProgress(int index, const PrefillProgress& progress) {
  if (!settings_.want_progress) return;
  Entry* entry = LastOf(index);
  if (entry == nullptr || !entry->event.has_progress()) entry = &Append(index);
  v1::PrefillProgress* out = entry->event.mutable_progress();
  out->set_total_tokens(progress.total_tokens);
  out->set_cached_tokens(progress.cached_tokens);
  out->set_processed_tokens(progress.processed_tokens);
  SetDuration(progress.elapsed, out->mutable_elapsed());
}

void ResponseQueue::AddOutput(int index, const OutputDelta& delta, int64_t cached_tokens,
                              int64_t completion_tokens) {
  if (delta.text.empty() && delta.tokens.empty()) return;
  Entry* entry = LastOf(index);
  if (entry == nullptr || !entry->event.has_output() || entry->bytes >= kMergeBytes) {
    entry = &Append(index);
  }
  v1::OutputChunk* chunk = entry->event.mutable_output();
  const size_t bytes = AppendDelta(delta, settings_, chunk);
  entry->bytes += bytes;
  bytes_ += bytes;
  chunk->set_prompt_tokens(settings_.prompt_tokens);
  chunk->set_cached_tokens(cached_tokens);
  chunk->set_completion_tokens(completion_tokens);
}

void ResponseQueue::AddPrompt(const OutputDelta& delta) {
  Entry* entry = entries_.empty() ? nullptr : &entries_.back();
  if (entry == nullptr || !entry->event.has_prompt() || entry->bytes >= kMergeBytes) {
    entry = &Append(0);
    entry->event.mutable_prompt()->set_first_token(prompt_tokens_told_);
  }
  v1::ScoredTokens* const out = entry->event.mutable_prompt();
  const int before = out->tokens_size();
  size_t bytes = 0;
  const auto bytes_of = [this](int32_t token) {
    return settings_.tokenizer == nullptr ? std::string()
                                          : std::string(settings_.tokenizer->TokenBytes(token));
  };
  if (prompt_tokens_told_ == 0) {
    v1::ScoredToken* const first = out->add_tokens();
    first->set_token_id(settings_.first_token);
    first->set_token_bytes(bytes_of(settings_.first_token));
  }
  for (const OutputToken& token : delta.tokens) {
    v1::ScoredToken* const scored = out->add_tokens();
    scored->set_token_id(token.token);
    scored->set_logprob(token.logprob);
    scored->set_rank(token.rank);
    scored->set_is_greedy(token.rank == 1);
    scored->set_token_bytes(bytes_of(token.token));
    for (const TokenLogprob& alternative : token.alternatives) {
      v1::TokenLogprob* const other = scored->add_alternatives();
      other->set_token_id(alternative.token);
      other->set_logprob(alternative.logprob);
      other->set_token_bytes(bytes_of(alternative.token));
      bytes += 16 + other->token_bytes().size();
    }
    bytes += 24 + scored->token_bytes().size();
  }
  prompt_tokens_told_ += out->tokens_size() - before;
  entry->bytes += bytes;
  bytes_ += bytes;
}

void ResponseQueue::AddFinished(int index, const GenerationResult& result) {
  v1::Finished* out = Append(index).event.mutable_finished();
  out->set_reason(ToProto(result.reason));
  if (!result.matched_stop.empty()) {
    out->set_matched_stop(result.matched_stop);
  } else if (result.matched_token >= 0) {
    out->set_matched_token_id(result.matched_token);
  }
  out->set_prompt_tokens(result.prompt_tokens);
  out->set_cached_tokens(result.cached_tokens);
  out->set_cached_generated_tokens(result.cached_generated_tokens);
  out->set_completion_tokens(result.completion_tokens);
  out->set_accepted_prediction_tokens(result.drafts_accepted);
  out->set_rejected_prediction_tokens(result.drafts_rejected);
  out->set_seed(result.seed);
  v1::Timings* timings = out->mutable_timings();
  SetDuration(result.queue_time, timings->mutable_queue());
  SetDuration(result.prefill_time, timings->mutable_prefill());
  if (result.completion_tokens > 0) {
    SetDuration(result.time_to_first_token, timings->mutable_time_to_first_token());
  }
  SetDuration(result.decode_time, timings->mutable_decode());
  out->set_kv_read_ratio(result.kv_read_ratio);
  if (result.unseen.has_value()) {
    out->mutable_unseen_mass()->set_mean(result.unseen->mean);
    out->mutable_unseen_mass()->set_largest(result.unseen->largest);
  }
}

bool ResponseQueue::Pop(v1::GenerateResponse* event) {
  if (entries_.empty()) return false;
  *event = std::move(entries_.front().event);
  bytes_ -= entries_.front().bytes;
  entries_.pop_front();
  return true;
}

void ResponseQueue::Clear() {
  entries_.clear();
  bytes_ = 0;
}

}  // namespace retroinfer
