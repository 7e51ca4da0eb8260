#include "gpu_worker/engine/segment_exchange.h"

#include <gtest/gtest.h>

#include <numeric>
#include <thread>
#include <vector>

#include "tests/support/backends.h"
#include "tests/support/fake_segment_store.h"

namespace retroinfer {
namespace {

using namespace test_support;

constexpr int64_t kTokens = kSinkTokens + 5 * 64 + 20;

class SegmentExchangeTest : public testing::Test {
 protected:
  SegmentExchangeTest() {
    memory_ = *KvMemory::Create(*backend_->device, {.geometry = geometry_,
                                                    .dense_blocks = 40,
                                                    .meta_blocks = 1,
                                                    .max_sequences = 6,
                                                    .max_model_len = 4096});
    copier_ = *BlockCopier::Create(*backend_->device, *backend_->stream, *memory_, store_.arena());
    auto saver = std::make_unique<BlockSaver>(BlockSaver::Parts{
        .store = &store_,
        .copy =
            [this](const StepCommand::Save& save) {
              return copier_->Begin(save.save_id, sequences_[save.id - 1]->kv, save.blocks);
            },
        .is_copied = [this](uint64_t save_id) { return copier_->IsDone(save_id); },
        .end_copy = [this](uint64_t save_id) { copier_->End(save_id); }});
    exchange_ =
        std::make_unique<SegmentExchange>(store_, inbox_, std::move(saver), geometry_, counters_);
    std::iota(prompt_.begin(), prompt_.end(), 0);
  }

  LiveRequest& Add(uint64_t id, std::vector<uint32_t> segments = {}) {
    LiveRequest& live = *live_.emplace_back(std::make_unique<LiveRequest>());
    EXPECT_EQ(id, sequences_.size() + 1);
    live.sequence = sequences_.emplace_back(std::make_unique<Sequence>()).get();
    live.need.segment_tokens = std::move(segments);
    live.phase = RequestPhase::kReserving;
    SequenceKv& kv = live.sequence->kv;
    kv.sequence_id = id;
    kv.prompt = prompt_;
    kv.prompt_tokens = kTokens;
    kv.prefix = NamePrefix(prompt_, 1 << 20, "model", "salt");
    kv.lineage = KvLineage(kv.prefix, kv.prompt, std::nullopt);
    kv.lineage.SetCached({}, 0);
    return live;
  }
  void TakeAnswers() {
    for (ReserveAnswer& answer : inbox_->Take(absl::Seconds(10)).answers) {
      exchange_->TakeAnswer(std::move(answer), live_);
    }
  }
  // The request's prompt is computed and lies in its blocks.
  void Compute(LiveRequest& live) {
    SequenceKv& kv = live.sequence->kv;
    ASSERT_TRUE(memory_->Reserve(KvBlocks{.dense = 8}, kv));
    kv.num_tokens = kTokens;
    live.first_token = absl::Now();
    live.phase = RequestPhase::kDecoding;
  }
  void FinishSaves(LiveRequest& live) {
    TakeAnswers();
    while (exchange_->IsSaving(live.sequence->id())) {
      exchange_->Tend();
      std::this_thread::yield();
    }
  }

  const KvGeometry geometry_{.num_layers = 2, .num_kv_heads = 2, .head_dim = 64, .format = kF32Kv};
  std::unique_ptr<Backend> backend_ = AvailableBackends().front().create();  // the CPU
  FakeSegmentStore store_{geometry_, 4000};
  std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>(Inbox::Limits{});
  EngineStats counters_;
  std::unique_ptr<KvMemory> memory_;
  std::unique_ptr<BlockCopier> copier_;
  std::unique_ptr<SegmentExchange> exchange_;
  std::vector<std::unique_ptr<Sequence>> sequences_;  // by id, from 1 on
  std::vector<int32_t> prompt_ = std::vector<int32_t>(static_cast<size_t>(kTokens));
  LiveRequests live_;
};

TEST_F(SegmentExchangeTest, WhoNeedsNoExtentsDoesNotAskForAny) {
  LiveRequest& live = Add(1);
  EXPECT_FALSE(exchange_->AskForExtents(live));
  EXPECT_FALSE(live.asked_store);
  EXPECT_TRUE(inbox_->Take(absl::ZeroDuration()).answers.empty());
}

TEST_F(SegmentExchangeTest, ExtentsAreTakenFromTheAnswerAndReleased) {
  LiveRequest& live = Add(1, {1024, 1024});
  live.sequence->kv.lineage = KvLineage();  // no names: no rows to ask for
  live.sequence->kv.prefix = {};
  ASSERT_TRUE(exchange_->AskForExtents(live));
  EXPECT_EQ(live.answer, StoreAnswer::kNone);
  TakeAnswers();
  EXPECT_EQ(live.answer, StoreAnswer::kGranted);
  EXPECT_EQ(live.sequence->kv.extents.size(), 2u);
  EXPECT_EQ(store_.num_sequences(), 1u);
  EXPECT_FALSE(exchange_->AnyReleasedSince(live));
  exchange_->Release(live);
  EXPECT_TRUE(exchange_->AnyReleasedSince(live));
  EXPECT_EQ(store_.num_sequences(), 0u);
  exchange_->Release(live);  // holds nothing any more
}

TEST_F(SegmentExchangeTest, ARequestWithoutRoomMayGetSomeWhileOthersHoldIt) {
  LiveRequest& holder = Add(1, std::vector<uint32_t>(3, 1024));
  ASSERT_TRUE(exchange_->AskForExtents(holder));
  TakeAnswers();
  if (holder.answer != StoreAnswer::kGranted) TakeAnswers();  // of its rows
  LiveRequest& waiting = Add(2, std::vector<uint32_t>(64, 8192));
  EXPECT_TRUE(exchange_->MayFreePages(waiting, live_));
  ASSERT_TRUE(exchange_->AskForExtents(waiting));
  TakeAnswers();
  EXPECT_EQ(waiting.answer, StoreAnswer::kArenaFull);
  EXPECT_TRUE(absl::IsResourceExhausted(waiting.arena_error));
  EXPECT_EQ(counters_.allocation_failures, 1u);
  EXPECT_TRUE(exchange_->MayFreePages(waiting, live_)) << "the first request holds some";
  live_.pop_front();
  EXPECT_FALSE(exchange_->MayFreePages(*live_.front(), live_)) << "alone, and nothing was released";
}

TEST_F(SegmentExchangeTest, WhatOneRequestLeavesAnotherReads) {
  LiveRequest& first = Add(1);
  Compute(first);
  exchange_->SaveAtEnd(first);
  EXPECT_TRUE(exchange_->IsSaving(1));
  FinishSaves(first);
  EXPECT_EQ(store_.num_committed(), 6u);
  EXPECT_EQ(first.saved_end, kTokens);

  LiveRequest& second = Add(2);
  ASSERT_TRUE(exchange_->AskForRows(second));
  EXPECT_NE(second.rows_id, 0u);
  TakeAnswers();
  EXPECT_EQ(second.answer, StoreAnswer::kGranted);
  EXPECT_TRUE(second.failure.ok()) << second.failure;
  // All but the last token, which is computed: whole blocks.
  EXPECT_EQ(second.sequence->kv.read_end(), kSinkTokens + 5 * 64);
  exchange_->ReleaseRows(second);
  EXPECT_EQ(second.rows_id, 0u);
  EXPECT_EQ(store_.num_sequences(), 0u);
}

TEST_F(SegmentExchangeTest, WhatIsSavedIsNotSavedAgain) {
  LiveRequest& live = Add(1);
  Compute(live);
  exchange_->Save(live, kSinkTokens + 2 * 64);
  FinishSaves(live);
  EXPECT_EQ(store_.num_committed(), 2u);
  exchange_->Save(live, kSinkTokens + 2 * 64);
  EXPECT_FALSE(exchange_->IsSaving(1));
  exchange_->SaveAtEnd(live);
  FinishSaves(live);
  EXPECT_EQ(store_.num_committed(), 6u);
}

TEST_F(SegmentExchangeTest, NothingIsSavedThatIsNotThere) {
  LiveRequest& live = Add(1);
  exchange_->SaveAtEnd(live);  // not computed
  EXPECT_FALSE(exchange_->IsSaving(1));
  Compute(live);
  live.phase = RequestPhase::kSuspended;
  exchange_->SaveAtEnd(live);
  EXPECT_FALSE(exchange_->IsSaving(1));
  live.phase = RequestPhase::kDecoding;
  store_.set_attached(false);
  exchange_->SaveAtEnd(live);
  EXPECT_FALSE(exchange_->IsSaving(1));
}

TEST_F(SegmentExchangeTest, APromptThatIsMeasuredIsComputedFromItsFirstRow) {
  LiveRequest& live = Add(1);
  live.sequence->num_prompt_logprobs = 0;
  EXPECT_FALSE(exchange_->AskForRows(live));
}

}  // namespace
}  // namespace retroinfer
