// One POST of /score, from its parsed body to the end of its answer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "http_gateway/api/score_json.h"
#include "http_gateway/api/score_request.h"
#include "http_gateway/http/exchange.h"
#include "http_gateway/server/generation.h"

namespace retroinfer::gateway {

// There is one answer, when all is measured: a measurement that the worker or a deadline has cut
// short is an error.
//
// Threads: the io_context's.
// Owns:    its call, which ends with it.
class Scoring final : public Responder,
                      public std::enable_shared_from_this<Scoring>,
                      private ScoreEvents {
 public:
  static constexpr size_t kAnswerBytesMax = size_t{64} << 20;

  // As Generation's.
  Scoring(GenerationContext* context, std::shared_ptr<Exchange> exchange, std::string request_id,
          HttpHeaders headers, std::string authorization);
  ~Scoring() override;

  void Start(ScoreCall call);
  void OnClientGone() override;

 private:
  void OnEvent(generation::v1::ScoreResponse&& event) override;
  void OnEnd(const absl::Status& status) override;
  absl::Status Take(const generation::v1::ScoreResponse& event);
  size_t Bytes() const;
  void Respond();
  void Fail(const absl::Status& status, ErrorOrigin origin);
  void Close();

  GenerationContext* const context_;
  std::shared_ptr<Exchange> exchange_;  // null: the answer is over, or the client has gone
  const std::string request_id_;
  const HttpHeaders headers_;
  const std::string authorization_;
  const absl::Time arrival_;

  RequestOptions options_;
  AnswerHead head_;
  ScoreStream* stream_ = nullptr;   // null: has not begun, or has ended
  std::vector<ScoredList> prompt_;  // one, if it is measured
  std::vector<ScoredList> continuations_;
  generation::v1::ScoreFinished finished_;
};

}  // namespace retroinfer::gateway
