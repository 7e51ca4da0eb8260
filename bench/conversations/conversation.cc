#include "bench/conversations/conversation.h"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "bench/support/must.h"

namespace retroinfer::bench {
namespace {

using Tokens = std::vector<int32_t>;

class AnswerSink final : public GenerationSink {
 public:
  void OnProgress(const PrefillProgress& /*progress*/) override {}
  void OnOutput(const OutputDelta& delta) override {
    for (const OutputToken& token : delta.tokens) tokens_.push_back(token.token);
  }
  void OnFinish(const GenerationResult& result) override {
    result_ = result;
    finished_.Notify();
  }

  const GenerationResult& Wait() {
    finished_.WaitForNotification();
    return result_;
  }
  // REQUIRES: Wait() has returned.
  const Tokens& tokens() const { return tokens_; }

 private:
  absl::Notification finished_;
  GenerationResult result_;
  Tokens tokens_;
};

class Conversation {
 public:
  Conversation(Engine& engine, const ConversationKind& kind, const ConversationSettings& settings)
      : engine_(engine), kind_(kind), settings_(settings), random_(settings.seed) {
    Append(kind.first_prompt);
  }

  ConversationTurn Turn() {
    const auto sink = std::make_shared<AnswerSink>();
    Must(engine_.Submit(Request(), sink));
    const GenerationResult& result = sink->Wait();
    Must(result.status);
    const int64_t generated = kind_.thoughts + kind_.answer;
    if (std::ssize(sink->tokens()) != generated) {
      Fail(absl::StrCat(std::string(kind_.name), ": ", sink->tokens().size(), " tokens instead of ",
                        generated));
    }
    const ConversationTurn turn{.prompt_tokens = result.prompt_tokens,
                                .recomputed = result.prompt_tokens - result.cached_tokens,
                                .fewest = Fewest(generated),
                                .fewest_exact = Fewest(0),
                                .first_token_s = absl::ToDoubleSeconds(result.time_to_first_token)};
    Remember(sink->tokens());
    prompt_.insert(prompt_.end(), sink->tokens().begin() + kind_.thoughts, sink->tokens().end());
    Append(std::uniform_int_distribution<int64_t>(kind_.new_least, kind_.new_most)(random_));
    ++num_turns_;
    AwaitIdle();
    return turn;
  }

 private:
  // All that a turn asks for.
  GenerationRequest Request() const {
    GenerationRequest request;
    request.request_id = absl::StrCat(std::string(kind_.name), "-", num_turns_);
    request.prompt = prompt_;
    request.sampling.temperature = 0;
    request.sampling.max_tokens = static_cast<int32_t>(kind_.thoughts + kind_.answer);
    request.sampling.ignore_eos = true;
    request.attention = settings_.attention;
    request.cache_salt = absl::StrCat(std::string(kind_.name), static_cast<int>(settings_.reuse));
    request.reuse = settings_.reuse;
    return request;
  }

  void Append(int64_t count) {
    std::uniform_int_distribution<int32_t> token(0, settings_.vocab_size - 1);
    for (int64_t i = 0; i < count; ++i) prompt_.push_back(token(random_));
  }

  void Remember(const Tokens& generated) {
    Tokens& all = computed_.emplace_back(prompt_);
    all.insert(all.end(), generated.begin(), generated.end());
  }

  // Tokens of the next prompt that come behind those that a turn has computed: all of its prompt
  // and some of what it has generated, at most `of_generated`, but for the last token, whose KV
  // nobody needed. The prompt's last token is always computed: what follows it is wanted.
  int64_t Fewest(int64_t of_generated) const {
    const int64_t unknown = std::max<int64_t>(1, kind_.thoughts + kind_.answer - of_generated);
    int64_t known = 0;
    for (const Tokens& one : computed_) {
      const auto differ =
          std::mismatch(prompt_.begin(), prompt_.end(), one.begin(), one.end() - unknown);
      known = std::max<int64_t>(known, differ.first - prompt_.begin());
    }
    return std::max<int64_t>(1, std::ssize(prompt_) - known);
  }

  void AwaitIdle() const {
    while (true) {
      const EngineStats stats = engine_.stats();
      if (stats.requests_running == 0 && stats.dense_blocks_used == 0) return;
      absl::SleepFor(absl::Milliseconds(1));
    }
  }

  Engine& engine_;
  const ConversationKind& kind_;
  const ConversationSettings& settings_;
  std::mt19937_64 random_;
  Tokens prompt_;                 // of the next turn
  std::vector<Tokens> computed_;  // prompts and answers of the turns so far
  int64_t num_turns_ = 0;
};

}  // namespace

std::vector<ConversationTurn> HoldConversation(Engine& engine, const ConversationKind& kind,
                                               const ConversationSettings& settings) {
  Conversation conversation(engine, kind, settings);
  std::vector<ConversationTurn> turns;
  for (int64_t i = 0; i < kind.turns; ++i) turns.push_back(conversation.Turn());
  return turns;
}

}  // namespace retroinfer::bench
