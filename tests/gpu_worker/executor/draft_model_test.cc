#include "gpu_worker/executor/draft_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "gpu_worker/ops/backend/cpu/cpu_needs.h"
#include "gpu_worker/ops/backend/cuda/cuda_needs.h"
#include "tests/support/backends.h"
#include "tests/support/loaded_model.h"

namespace retroinfer {
namespace {

using Tokens = std::vector<int32_t>;
using testing::HasSubstr;
using testing::SizeIs;

constexpr char kModel[] = "llama-d64-untied-bf16";
constexpr int64_t kAll = 1'000'000;  // rows of layers: more than any text has

ModelConfig Config() {
  const auto folder = std::filesystem::path(RETROINFER_SOURCE_DIR) / "tests/golden/models" / kModel;
  return LoadModelConfig(folder.string()).value();
}

// A text of one prompt and what was generated behind it.
struct Text {
  uint64_t id = 0;
  Tokens prompt, answer;
  DraftedText drafted() const { return {.id = id, .prompt = prompt, .answer = answer}; }
};

Text MakeText(uint64_t id, int64_t prompt_tokens) {
  Text text{.id = id, .prompt = {}, .answer = {17}};
  for (int64_t i = 0; i < prompt_tokens; ++i) {
    const auto number = static_cast<uint64_t>(i) * 131 + id * 17;
    text.prompt.push_back(static_cast<int32_t>(number % 250));
  }
  return text;
}

class DraftModelTest : public testing::TestWithParam<test_support::BackendParam> {
 protected:
  void SetUp() override {
    backend_ = GetParam().create();
    config_ = Config();
    const auto sizes = DraftModel::SizesFor(config_, config_.vocab_size, 1000, 3);
    ASSERT_TRUE(sizes.ok()) << sizes.status();
    sizes_ = *sizes;
  }
  // The same model each time, with KV of its own.
  std::unique_ptr<DraftModel> Create() {
    models_.push_back(
        test_support::LoadGoldenModel(*backend_, kModel, sizes_.max_rows, sizes_.max_step_rows()));
    auto model = DraftModel::Create({.device = backend_->device.get(),
                                     .ops = backend_->ops.get(),
                                     .stream = backend_->stream.get(),
                                     .model = models_.back().get()},
                                    sizes_);
    EXPECT_TRUE(model.ok()) << model.status();
    return *std::move(model);
  }
  static void Read(DraftModel& model, const Text& text, int64_t rows = kAll) {
    while (model.StateOf(text.drafted()).unread > 0) {
      ASSERT_TRUE(model.StateOf(text.drafted()).has_room);
      const int64_t before = model.StateOf(text.drafted()).unread;
      const absl::Status status = model.Read(text.drafted(), rows);
      ASSERT_TRUE(status.ok()) << status;
      ASSERT_LT(model.StateOf(text.drafted()).unread, before);
    }
  }
  static Tokens Draft(DraftModel& model, const Text& text, int64_t count) {
    const DraftModel::Ask ask{.text = text.drafted(), .count = count};
    auto drafts = model.Draft({&ask, 1});
    EXPECT_TRUE(drafts.ok()) << drafts.status();
    if (!drafts.ok()) return {};
    EXPECT_EQ(drafts->num_steps, count);
    return drafts->tokens[0];
  }

  std::unique_ptr<test_support::Backend> backend_;
  ModelConfig config_;
  DraftModel::Sizes sizes_;
  std::vector<std::unique_ptr<Transformer>> models_;
};

TEST_P(DraftModelTest, HowATextIsReadChangesNothing) {
  const Text text = MakeText(1, 150);
  const auto whole = Create(), in_pieces = Create();
  EXPECT_EQ(whole->StateOf(text.drafted()).unread, 150 * config_.num_layers);
  Read(*whole, text);
  Read(*in_pieces, text, 70);
  const Tokens draft = Draft(*whole, text, 8);
  EXPECT_THAT(draft, SizeIs(8));
  EXPECT_EQ(Draft(*in_pieces, text, 8), draft);
}

TEST_P(DraftModelTest, ATextThatGoesOnAsDraftedIsNotReadAgain) {
  Text text = MakeText(1, 60);
  const auto model = Create();
  Read(*model, text);
  const Tokens eight = Draft(*model, text, 8);
  ASSERT_THAT(eight, SizeIs(8));
  text.answer.insert(text.answer.end(), eight.begin(), eight.begin() + 5);
  const DraftModel::State state = model->StateOf(text.drafted());
  EXPECT_EQ(state.unread, 0);
  EXPECT_EQ(state.behind, 0) << "the newest token is fed";
  EXPECT_EQ(Draft(*model, text, 3), Tokens(eight.begin() + 5, eight.end()));
}

// KV of drafts that were wrong is gone, to the bit: what follows is what a model drafts that has
// never fed them.
TEST_P(DraftModelTest, WrongDraftsLeaveNothingBehind) {
  for (const size_t right : {0, 1, 4}) {
    SCOPED_TRACE(right);
    Text text = MakeText(1, 60);
    const auto model = Create(), other = Create();
    Read(*model, text);
    Read(*other, text);
    const Tokens eight = Draft(*model, text, 8);
    ASSERT_THAT(eight, SizeIs(8));
    text.answer.insert(text.answer.end(), eight.begin(),
                       eight.begin() + static_cast<ptrdiff_t>(right));
    text.answer.push_back((eight[right] + 1) % 250);
    EXPECT_EQ(model->StateOf(text.drafted()).behind, 0);
    EXPECT_EQ(other->StateOf(text.drafted()).behind, static_cast<int64_t>(right) + 1);
    EXPECT_EQ(Draft(*model, text, 8), Draft(*other, text, 8));
  }
}

TEST_P(DraftModelTest, WhatWasGeneratedMeanwhileIsReadAgain) {
  Text text = MakeText(1, 90);
  const auto model = Create();
  Read(*model, text);
  for (int32_t token = 0; token < 8; ++token) text.answer.push_back(token);
  EXPECT_EQ(model->StateOf(text.drafted()).unread, 0);
  text.answer.push_back(9);
  EXPECT_EQ(model->StateOf(text.drafted()).unread, (99 - 68) * int64_t{config_.num_layers})
      << "from the last whole block on";
  Read(*model, text);
  const auto fresh = Create();
  Read(*fresh, text);
  EXPECT_EQ(Draft(*model, text, 6), Draft(*fresh, text, 6));
}

TEST_P(DraftModelTest, TheWindowMovesWithTheText) {
  Text text = MakeText(1, 700);
  const auto model = Create();
  EXPECT_EQ(model->StateOf(text.drafted()).unread,
            (sizes_.window_tokens / 2 - 1) * int64_t{config_.num_layers});
  int reads = 0;
  for (int i = 0; i < 60; ++i) {
    reads += model->StateOf(text.drafted()).unread > 0 ? 1 : 0;
    Read(*model, text);
    const Tokens draft = Draft(*model, text, 8);
    ASSERT_THAT(draft, SizeIs(8));
    text.answer.insert(text.answer.end(), draft.begin(), draft.end());
  }
  EXPECT_EQ(reads, 1 + 480 / (sizes_.window_tokens / 2));
}

TEST_P(DraftModelTest, TextsAreDraftedTogetherAsAlone) {
  const Text first = MakeText(1, 40), second = MakeText(2, 100), third = MakeText(3, 7);
  const auto together = Create(), alone = Create();
  for (const Text* const text : {&first, &second, &third}) {
    Read(*together, *text);
    Read(*alone, *text);
  }
  const std::vector<DraftModel::Ask> asks = {{.text = third.drafted(), .count = 2},
                                             {.text = first.drafted(), .count = 8},
                                             {.text = second.drafted(), .count = 5}};
  const auto drafts = together->Draft(asks);
  ASSERT_TRUE(drafts.ok()) << drafts.status();
  EXPECT_EQ(drafts->num_steps, 8);
  EXPECT_EQ(drafts->num_rows, 2 + 8 + 5);
  EXPECT_EQ(drafts->tokens[0], Draft(*alone, third, 2));
  EXPECT_EQ(drafts->tokens[1], Draft(*alone, first, 8));
  EXPECT_EQ(drafts->tokens[2], Draft(*alone, second, 5));
}

TEST_P(DraftModelTest, ThereIsRoomForSomeTexts) {
  const auto model = Create();
  for (uint64_t id = 1; id <= 3; ++id) Read(*model, MakeText(id, 30));
  const Text fourth = MakeText(4, 30);
  EXPECT_FALSE(model->StateOf(fourth.drafted()).has_room);
  const std::vector<uint64_t> kept = {1, 3};
  model->Keep(kept);
  EXPECT_EQ(model->StateOf(MakeText(3, 30).drafted()).unread, 0);
  Read(*model, fourth);
  EXPECT_EQ(model->StateOf(fourth.drafted()).unread, 0);
  // One that is let go while it is being read.
  model->Keep({});
  ASSERT_TRUE(model->Read(fourth.drafted(), 1).ok());
  EXPECT_EQ(model->reading(), 4u);
  model->Keep({});
  EXPECT_EQ(model->reading(), 0u);
  for (uint64_t id = 5; id <= 7; ++id) Read(*model, MakeText(id, 30));
}

TEST_P(DraftModelTest, TokensBeyondTheVocabularyAreNoDrafts) {
  const Text text = MakeText(1, 60);
  const auto model = Create();
  Read(*model, text);
  const Tokens draft = Draft(*model, text, 8);
  ASSERT_THAT(draft, SizeIs(8));
  const int32_t largest = *std::ranges::max_element(draft);
  const auto before = std::ranges::find(draft, largest) - draft.begin();
  sizes_.vocab_size = largest;
  const auto smaller = Create();
  Read(*smaller, text);
  const DraftModel::Ask ask{.text = text.drafted(), .count = 8};
  const auto drafts = smaller->Draft({&ask, 1});
  ASSERT_TRUE(drafts.ok()) << drafts.status();
  EXPECT_EQ(drafts->tokens[0], Tokens(draft.begin(), draft.begin() + before));
}

TEST_P(DraftModelTest, StepsOfNewSizesAreToldApart) {
  const auto model = Create();
  Text text = MakeText(1, 60);
  Read(*model, text);
  const DraftModel::Ask one{.text = text.drafted(), .count = 2};
  EXPECT_FALSE(model->Draft({&one, 1})->is_settled);
  EXPECT_TRUE(model->Draft({&one, 1})->is_settled);
  text.answer.push_back(1);
  text.answer.push_back(1);
  const DraftModel::Ask behind{.text = text.drafted(), .count = 2};
  EXPECT_FALSE(model->Draft({&behind, 1})->is_settled) << "the first one has more rows";
}

TEST_P(DraftModelTest, AfterTheWarmUpStepsAreSettled) {
  const auto model = Create();
  ASSERT_TRUE(model->WarmUp().ok());
  EXPECT_EQ(model->reading(), 0u);
  Text text = MakeText(1, 60);
  Read(*model, text);
  const DraftModel::Ask ask{.text = text.drafted(), .count = 3};
  EXPECT_TRUE(model->Draft({&ask, 1})->is_settled);
  for (uint64_t id = 2; id <= 3; ++id) Read(*model, MakeText(id, 30));
}

TEST_P(DraftModelTest, MemoryIsWhatThePlanSays) {
  Device& device = *backend_->device;
  const auto allocated = [&device] {
    MemoryNeed need;
    for (int i = 0; i < static_cast<int>(MemoryPurpose::kCount); ++i) {
      const auto purpose = static_cast<MemoryPurpose>(i);
      need[purpose] = device.allocated_bytes(purpose);
    }
    return need;
  };
  const auto loaded = test_support::LoadGoldenModel(*backend_, kModel, 1, 1);
  const size_t weights = allocated()[MemoryPurpose::kWeights];
  const MemoryNeed before = allocated();
  const auto model = Create();
  const BackendNeeds& needs = device.info().backend == "cuda" ? kCudaNeeds : kCpuNeeds;
  const MemoryNeed planned = DraftModel::MemoryOf(config_, needs, sizes_);
  const MemoryNeed after = allocated();
  for (int i = 0; i < static_cast<int>(MemoryPurpose::kCount); ++i) {
    const auto purpose = static_cast<MemoryPurpose>(i);
    if (purpose == MemoryPurpose::kWeights) continue;
    EXPECT_EQ(after[purpose] - before[purpose], planned[purpose]) << MemoryPurposeName(purpose);
  }
  EXPECT_GT(weights, 0u);
}

INSTANTIATE_TEST_SUITE_P(Backends, DraftModelTest,
                         testing::ValuesIn(test_support::AvailableBackends()),
                         test_support::BackendName);

TEST(DraftModelSizesTest, FollowFromTheModelAndTheWorker) {
  ModelConfig config = Config();
  config.context_length = 32768;
  const auto sizes = DraftModel::SizesFor(config, 100, 100'000, 32);
  ASSERT_TRUE(sizes.ok());
  EXPECT_EQ(sizes->window_tokens, 4096);
  EXPECT_EQ(sizes->max_texts, 8);
  EXPECT_EQ(sizes->vocab_size, 100);
  EXPECT_EQ(DraftModel::SizesFor(config, 1000, 1000, 2)->window_tokens, 1008);
  EXPECT_EQ(DraftModel::SizesFor(config, 1000, 1000, 2)->max_texts, 2);
  EXPECT_EQ(DraftModel::SizesFor(config, 1000, 1000, 2)->vocab_size, config.vocab_size);
}

TEST(DraftModelSizesTest, ModelsThatCannotDraftAreRefused) {
  ModelConfig config = Config();
  config.context_length = 100;
  EXPECT_THAT(DraftModel::SizesFor(config, 100, 1000, 2).status().message(),
              HasSubstr("made for 100 tokens"));
  config.context_length = 1000;
  config.layer_windows = {100, 0};
  EXPECT_EQ(DraftModel::SizesFor(config, 100, 1000, 2).status().code(),
            absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace retroinfer
