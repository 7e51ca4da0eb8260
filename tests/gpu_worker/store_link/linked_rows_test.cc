// What a conversation leaves and its next turn reads, through a link and a real store: blocks,
// generated KV and rows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "gpu_worker/engine/linked_segment_store.h"
#include "gpu_worker/store_link/store_link.h"
#include "tests/gpu_worker/store_link/in_process_store.h"
#include "tests/kv_store_service/prompt_text.h"

namespace retroinfer {
namespace {

using kvstore::MadeBy;
using kvstore::PromptText;
using testing::ElementsAre;

class LinkedRowsTest : public testing::Test {
 protected:
  LinkedRowsTest() { Connect(); }

  void Connect() {
    StoreLinkOptions options;
    options.target = service_.target();
    options.geometry = kvstore::kTinyGeometry;
    options.model_fingerprint = "model";
    options.num_slots = 16;
    options.log_capacity = 64;
    options.request_capacity = 64;
    options.reserve_timeout = absl::Minutes(1);
    auto link = StoreLink::Connect(options);
    ASSERT_TRUE(link.ok()) << link.status();
    link_ = *std::move(link);
    store_ = std::make_unique<LinkedSegmentStore>(*link_);
  }
  std::vector<Extent> Reserve(ReserveRequest request) {
    absl::Notification done;
    absl::StatusOr<std::vector<Extent>> result;
    store_->Reserve(std::move(request), [&](absl::StatusOr<std::vector<Extent>> extents) {
      result = std::move(extents);
      done.Notify();
    });
    done.WaitForNotification();
    return result.value();  // or ends the test with the status
  }
  static ReserveRequest ChainRequest(uint64_t sequence, const std::vector<SegmentIdentity>& chain,
                                     size_t offset) {
    ReserveRequest request{.sequence_id = sequence};
    request.token_begin = kSinkTokens + offset;
    for (const SegmentIdentity& identity : chain) {
      request.segments.push_back({static_cast<uint32_t>(identity.token_ids.size()), identity});
    }
    return request;
  }
  ReserveRequest RowsRequest(uint64_t sequence, size_t end) const {
    ReserveRequest request{.sequence_id = sequence};
    request.made_by = MadeBy("wave");
    request.rows = text_.Rows(0, end);
    return request;
  }
  // Reserves a chain and writes what is not cached. Returns what is to be committed.
  std::vector<CommittedSegment> Write(uint64_t sequence, const std::vector<SegmentIdentity>& chain,
                                      size_t offset) {
    std::vector<CommittedSegment> segments;
    uint64_t begin = kSinkTokens + offset;
    const std::vector<Extent> extents = Reserve(ChainRequest(sequence, chain, offset));
    for (size_t i = 0; i < extents.size(); ++i) {
      const Extent& extent = extents[i];
      if (!extent.cached) {
        kvstore::WriteImage(link_->arena().subspan(size_t{extent.first_page} * kPageBytes,
                                                   size_t{extent.num_pages} * kPageBytes),
                            kvstore::kTinyGeometry, begin, extent.num_tokens);
        segments.push_back({extent.id, begin, chain[i]});
      }
      begin += extent.num_tokens;
    }
    return segments;
  }
  void Save(const std::vector<SegmentIdentity>& chain, size_t offset = 0) {
    store_->Commit(900, Write(900, chain, offset));
    store_->Release(900);
    WaitUntilIdle();
  }
  static std::vector<int> Tokens(const std::vector<Extent>& extents) {
    std::vector<int> tokens;
    for (const Extent& extent : extents) {
      EXPECT_TRUE(extent.cached);
      const int count = static_cast<int>(extent.num_tokens);
      tokens.push_back(extent.generated.has_value() ? -count : count);
    }
    return tokens;
  }
  void WaitUntilIdle() {
    while (link_->num_pending() > 0) absl::SleepFor(absl::Milliseconds(2));
  }
  void Restart() {
    service_.Stop();
    while (link_->state() != StoreLink::State::kLost) absl::SleepFor(absl::Milliseconds(2));
    service_.Start();
    while (link_->state() != StoreLink::State::kAttached) absl::SleepFor(absl::Milliseconds(2));
  }

  const PromptText text_ = PromptText::Of(4096);
  // An exact block, a full generated one and one that is not full.
  const std::vector<SegmentIdentity> turn_ = [this] {
    std::vector<SegmentIdentity> chain = {text_.Block(0)};
    chain.push_back(text_.Generated(chain.back().name, 64, 64));
    chain.push_back(text_.Generated(chain.back().name, 128, 30));
    return chain;
  }();
  InProcessStore service_;
  std::unique_ptr<StoreLink> link_;
  std::unique_ptr<LinkedSegmentStore> store_;
};

TEST_F(LinkedRowsTest, TheNextTurnReadsWhatTheLastOneLeft) {
  Save(turn_);
  const std::vector<Extent> rows = Reserve(RowsRequest(1, 1000));
  EXPECT_THAT(Tokens(rows), ElementsAre(64, -64, -30));
  EXPECT_EQ(rows[1].generated, turn_[1].name);
  EXPECT_EQ(rows[2].generated, turn_[2].name);
  // The same save again finds everything.
  EXPECT_TRUE(Write(2, turn_, 0).empty());
  store_->Release(2);
  const auto stats = service_.Stats();
  EXPECT_EQ(stats.row_queries_tokens_total(), 999u);
  EXPECT_EQ(stats.row_hits_tokens_total(), 158u);
  EXPECT_EQ(stats.named_segments(), 3u);
}

TEST_F(LinkedRowsTest, RowsWaitForASaveUnderWay) {
  const auto segments = Write(900, turn_, 0);
  absl::Notification answered;
  std::vector<int> tokens;
  store_->Reserve(RowsRequest(1, 1000), [&](absl::StatusOr<std::vector<Extent>> extents) {
    tokens = Tokens(extents.value());
    answered.Notify();
  });
  Reserve(ReserveRequest::Unnamed(5, {1024}));  // calls pass the waiting one
  EXPECT_FALSE(answered.HasBeenNotified());
  store_->Commit(900, segments);
  answered.WaitForNotification();
  EXPECT_THAT(tokens, ElementsAre(64, -64, -30));
}

TEST_F(LinkedRowsTest, AMainRequestSharesGeneratedSegments) {
  const SegmentIdentity generated = text_.Generated(text_.TextAt(0), 0, 1024);
  Save({generated});
  ReserveRequest request = ChainRequest(1, text_.Segments(2, 1024), 0);
  request.made_by = MadeBy("wave");
  for (size_t i = 0; i < 2; ++i) request.segments[i].text = text_.TextAt(1024 * (i + 1));
  const std::vector<Extent> extents = Reserve(request);
  ASSERT_EQ(extents.size(), 2u);
  EXPECT_TRUE(extents[0].cached);
  EXPECT_EQ(extents[0].generated, generated.name);
  EXPECT_FALSE(extents[1].cached);
  // Without the settings it is computed.
  request = ChainRequest(2, text_.Segments(1, 1024), 0);
  EXPECT_FALSE(Reserve(request)[0].cached);
}

TEST_F(LinkedRowsTest, ARestartedStoreLearnsWhatWasLeftAndWhoUsesIt) {
  Save(turn_);
  const std::vector<Extent> live = Reserve(RowsRequest(1, 1000));
  Restart();
  EXPECT_EQ(service_.Stats().named_segments(), 3u);
  EXPECT_EQ(service_.Stats().unreferenced_pages(), 0u);
  const std::vector<Extent> again = Reserve(RowsRequest(2, 1000));
  EXPECT_THAT(Tokens(again), ElementsAre(64, -64, -30));
  EXPECT_EQ(again[2].id, live[2].id);
  store_->Release(1);
  store_->Release(2);
  WaitUntilIdle();
  Restart();  // nobody uses them now
  EXPECT_THAT(Tokens(Reserve(RowsRequest(3, 1000))), ElementsAre(64, -64, -30));
}

// The names of what an earlier worker left are not known to the next one.
TEST_F(LinkedRowsTest, ARestartedStoreKeepsWhatTheWorkerKnowsNoNamesOf) {
  Save(turn_);
  store_.reset();
  link_.reset();
  Connect();
  const std::vector<Extent> first = Reserve(RowsRequest(1, 1000));
  EXPECT_THAT(Tokens(first), ElementsAre(64, -64, -30));
  Reserve(RowsRequest(2, 100));
  Restart();
  EXPECT_EQ(service_.Stats().sequences(), 2u);
  EXPECT_EQ(service_.Stats().named_segments(), 0u);
  EXPECT_EQ(service_.Stats().committed_segments(), 3u);
  store_->Release(1);
  store_->Release(2);
  WaitUntilIdle();
  EXPECT_EQ(service_.Stats().free_pages(), service_.Stats().arena_pages());
}

TEST_F(LinkedRowsTest, ManyBlocksAreCommittedAtOnce) {
  const PromptText text = PromptText::Of(64 * 100);
  std::vector<SegmentIdentity> chain;
  for (size_t i = 0; i < 100; ++i) chain.push_back(text.Block(64 * i));
  Save(chain);
  ReserveRequest request{.sequence_id = 1};
  request.rows = text.Rows(0, text.size());
  EXPECT_EQ(Reserve(request).size(), 99u);  // the prompt's last token is in the last block
}

}  // namespace
}  // namespace retroinfer
