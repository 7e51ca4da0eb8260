// Talks with a server about the tokens of texts: what they are, and how probable.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "client/command/connection.h"
#include "client/command/interrupt.h"
#include "client/generate/score_report.h"

namespace retroinfer::client {

// Threads: one; a signal cancels the call that runs.
class Scorer {
 public:
  // Text is tokenized in one call, and that is how much every server takes
  // (GenerationService.Tokenize).
  static constexpr size_t kTextBytesMax = size_t{16} << 20;

  // `affinity`: what the calls are about, for balancers. REQUIRES: both outlive the scorer.
  Scorer(const Connection& connection, std::string affinity, bool parse_special,
         InterruptWatcher* interrupts)
      : connection_(connection),
        affinity_(std::move(affinity)),
        parse_special_(parse_special),
        interrupts_(interrupts) {}

  grpc::Status Tokenize(const std::string& text, std::vector<int32_t>* tokens);
  grpc::Status GetModelInfo(generation::v1::GetModelInfoResponse* info);
  // Appends the scores of the window's continuation, which the request has.
  //
  // Returns: ABORTED if the server ends the call before the last token.
  grpc::Status Score(const generation::v1::ScoreRequest& request, const ScoreWindow& window,
                     std::vector<TokenScore>* scores);

 private:
  grpc::Status Call(const std::function<grpc::Status(grpc::ClientContext*)>& call);

  const Connection& connection_;
  const std::string affinity_;
  const bool parse_special_;
  InterruptWatcher* const interrupts_;
};

// Puts tokens [begin, first) of the window into the request as its context, and [first, end) as its
// one continuation.
void SetWindow(const std::vector<int32_t>& tokens, const ScoreWindow& window,
               generation::v1::ScoreRequest* request);

}  // namespace retroinfer::client
