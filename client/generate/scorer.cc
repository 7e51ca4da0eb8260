#include "client/generate/scorer.h"

#include "absl/strings/str_cat.h"

namespace retroinfer::client {

namespace v1 = generation::v1;

grpc::Status Scorer::Tokenize(const std::string& text, std::vector<int32_t>* tokens) {
  v1::TokenizeRequest request;
  request.set_text(text);
  request.set_parse_special(parse_special_);
  v1::TokenizeResponse response;
  const grpc::Status status = Call([&](grpc::ClientContext* context) {
    return connection_.stub().Tokenize(context, request, &response);
  });
  tokens->assign(response.token_ids().begin(), response.token_ids().end());
  return status;
}

grpc::Status Scorer::GetModelInfo(v1::GetModelInfoResponse* info) {
  return Call([&](grpc::ClientContext* context) {
    return connection_.stub().GetModelInfo(context, {}, info);
  });
}

grpc::Status Scorer::Score(const v1::ScoreRequest& request, const ScoreWindow& window,
                           std::vector<TokenScore>* scores) {
  const size_t before = scores->size();
  const grpc::Status status = Call([&](grpc::ClientContext* context) {
    const auto reader = connection_.stub().Score(context, request);
    v1::ScoreResponse event;
    while (reader->Read(&event)) {
      for (const v1::ScoredToken& token : event.continuation().tokens()) {
        const auto at = static_cast<int64_t>(scores->size() - before);
        scores->push_back({.context = window.first - window.begin + at,
                           .logprob = token.logprob(),
                           .greedy = token.alternatives_size() > 0
                                         ? token.alternatives(0).token_id()
                                         : token.token_id(),
                           .is_greedy = token.is_greedy()});
      }
    }
    return reader->Finish();
  });
  if (!status.ok()) return status;
  const auto wanted = static_cast<size_t>(window.end - window.first);
  if (scores->size() - before == wanted) return status;
  return {grpc::StatusCode::ABORTED,
          absl::StrCat("the server has ended the call after ", scores->size() - before, " of ",
                       wanted, " tokens")};
}

grpc::Status Scorer::Call(const std::function<grpc::Status(grpc::ClientContext*)>& call) {
  grpc::ClientContext context;
  connection_.Prepare(&context, affinity_);
  interrupts_->SetCallback([&context](int) { context.TryCancel(); });
  const grpc::Status status = call(&context);
  interrupts_->SetCallback(nullptr);
  return status;
}

void SetWindow(const std::vector<int32_t>& tokens, const ScoreWindow& window,
               v1::ScoreRequest* request) {
  request->mutable_token_ids()->mutable_ids()->Assign(tokens.begin() + window.begin,
                                                      tokens.begin() + window.first);
  request->clear_continuations();
  request->add_continuations()->mutable_token_ids()->mutable_ids()->Assign(
      tokens.begin() + window.first, tokens.begin() + window.end);
}

}  // namespace retroinfer::client
