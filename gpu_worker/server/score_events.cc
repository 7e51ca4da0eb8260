#include "gpu_worker/server/score_events.h"

#include <algorithm>

namespace retroinfer {
namespace {

namespace v1 = generation::v1;

void FillTokens(const v1::OutputChunk& chunk, v1::ScoredTokens* out) {
  for (int i = 0; i < chunk.token_ids_size(); ++i) {
    const v1::PositionLogprobs& position = chunk.logprobs(i);
    v1::ScoredToken* const token = out->add_tokens();
    token->set_token_id(chunk.token_ids(i));
    token->set_logprob(position.logprob());
    token->set_rank(position.rank());
    token->set_is_greedy(position.rank() == 1);
    token->set_token_bytes(position.token_bytes());
    *token->mutable_alternatives() = position.alternatives();
  }
}

}  // namespace

v1::ScoreResponse ScoreEvents::Next(const v1::GenerateResponse& event) {
  v1::ScoreResponse response;
  response.set_request_id(event.request_id());
  if (event.has_progress()) {
    *response.mutable_progress() = event.progress();
  } else if (event.has_prompt()) {
    *response.mutable_prompt() = event.prompt();
  } else if (event.has_output()) {
    const auto index = static_cast<size_t>(event.index());
    told_.resize(std::max(told_.size(), index + 1), 0);
    v1::ScoredTokens* const out = response.mutable_continuation();
    out->set_continuation(event.index());
    out->set_first_token(told_[index]);
    FillTokens(event.output(), out);
    told_[index] += out->tokens_size();
  } else {
    const v1::Finished& finished = event.finished();
    v1::ScoreFinished* const out = response.mutable_finished();
    out->set_reason(finished.reason());
    out->set_prompt_tokens(finished.prompt_tokens());
    out->set_cached_tokens(finished.cached_tokens());
    out->set_scored_tokens(finished.completion_tokens());
    *out->mutable_timings() = finished.timings();
    out->set_kv_read_ratio(finished.kv_read_ratio());
    if (finished.has_unseen_mass()) {
      *out->mutable_unseen_mass() = finished.unseen_mass();
    }
  }
  return response;
}

}  // namespace retroinfer
