// One POST of /score, from its parsed body to the end of its answer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "http_gateway/api/score_json.h"
#include "http_gateway/api/score_request.h"
#include "http_gateway/server/computed_answer.h"

namespace retroinfer::gateway {

// There is one answer, when all is measured: a measurement that the worker or a deadline has cut
// short is an error.
//
// Threads: the io_context's.
// Owns:    its call, which ends with it.
class Scoring final : public ComputedAnswer, private ScoreEvents {
 public:
  static constexpr size_t kAnswerBytesMax = size_t{64} << 20;

  Scoring(GenerationContext* context, AnswerRecipient recipient);
  ~Scoring() override;

  void Start(ScoreCall call);

 private:
  void OnEvent(generation::v1::ScoreResponse&& event) override;
  void OnEnd(const absl::Status& status) override;
  absl::Status Take(const generation::v1::ScoreResponse& event);
  size_t Bytes() const;
  void Respond();
  void Fail(const absl::Status& status, ErrorOrigin origin) override;
  void CancelCalls() override;

  ScoreStream* stream_ = nullptr;   // null: has not begun, or has ended
  std::vector<ScoredList> prompt_;  // one, if it is measured
  std::vector<ScoredList> continuations_;
  generation::v1::ScoreFinished finished_;
};

}  // namespace retroinfer::gateway
