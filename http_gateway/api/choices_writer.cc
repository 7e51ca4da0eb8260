#include "http_gateway/api/choices_writer.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "http_gateway/api/chunk_writer.h"

namespace retroinfer::gateway {
namespace {

namespace v1 = generation::v1;

class ChoicesWriter final : public AnswerWriter {
 public:
  ChoicesWriter(ChoicesOptions options, std::vector<std::unique_ptr<Choice>> choices)
      : options_(std::move(options)),
        choices_(std::move(choices)),
        chunks_(absl::StrCat("data: ", options_.head.Json(), ",\"choices\":["),
                options_.include_usage ? "],\"usage\":null}\n\n" : "]}\n\n") {}

  void Begin() override {
    for (const auto& choice : choices_) choice->Begin(&chunks_);
  }

  void Progress(size_t choice, const v1::PrefillProgress& progress) override {
    if (!options_.return_progress) return;
    const int64_t elapsed_ms =
        progress.elapsed().seconds() * 1000 + progress.elapsed().nanos() / 1'000'000;
    AddChunk(absl::StrCat(R"(,"progress":{"index":)", choice, R"(,"total_tokens":)",
                          progress.total_tokens(), R"(,"cached_tokens":)", progress.cached_tokens(),
                          R"(,"processed_tokens":)", progress.processed_tokens(),
                          R"(,"elapsed_ms":)", elapsed_ms, "}"));
  }

  void Prompt(size_t choice, const v1::ScoredTokens& tokens) override {
    choices_[choice]->Prompt(tokens, &chunks_);
  }
  void Output(size_t choice, const v1::OutputChunk& chunk) override {
    choices_[choice]->Output(chunk, &chunks_);
  }
  void Finish(size_t choice, const v1::Finished& finished) override {
    choices_[choice]->Finish(finished, &chunks_);
  }

  void End(const Usage& usage) override {
    if (options_.include_usage) AddChunk(absl::StrCat(",\"usage\":", UsageJson(usage)));
    chunks_.AppendRaw("data: [DONE]\n\n");
  }
  void Fail(const ApiError& error) override {
    chunks_.AppendRaw(absl::StrCat("data: ", error.ToJson(), "\n\n"));
  }
  void KeepAlive() override { chunks_.AppendRaw(": keep-alive\n\n"); }

  std::string Whole(const Usage& usage) const override {
    std::string body = absl::StrCat(options_.head.Json(), ",\"choices\":[");
    for (size_t i = 0; i < choices_.size(); ++i) {
      if (i > 0) body.push_back(',');
      body.append(choices_[i]->Whole());
    }
    absl::StrAppend(&body, "],\"usage\":", UsageJson(usage), "}");
    return body;
  }

  size_t logprobs_bytes() const override {
    size_t bytes = 0;
    for (const auto& choice : choices_) bytes += choice->logprobs_bytes();
    return bytes;
  }
  std::string_view unsent() const override { return chunks_.text(); }
  void ClearUnsent() override { chunks_.Clear(); }

 private:
  // A chunk without choices. `more`: behind them.
  void AddChunk(const std::string& more) {
    chunks_.AppendRaw(
        absl::StrCat("data: ", options_.head.Json(), ",\"choices\":[]", more, "}\n\n"));
  }

  const ChoicesOptions options_;
  const std::vector<std::unique_ptr<Choice>> choices_;
  ChunkWriter chunks_;
};

}  // namespace

std::unique_ptr<AnswerWriter> MakeChoicesWriter(ChoicesOptions options,
                                                std::vector<std::unique_ptr<Choice>> choices) {
  return std::make_unique<ChoicesWriter>(std::move(options), std::move(choices));
}

}  // namespace retroinfer::gateway
