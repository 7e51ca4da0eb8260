#include "kv_store_service/tier/restore_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/kv_store_service/rows_in_memory.h"
#include "tests/support/storage/in_memory_segment_storage.h"

namespace retroinfer::kvstore {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class RestorePlanTest : public RowsInMemoryTest {
 protected:
  RestorePlanTest() {
    auto storage = MakeInMemorySegmentStorage();
    disk_ = storage.get();
    tier_ = std::make_unique<DurableTier>(DurableTierOptions{}, std::move(storage), nullptr);
  }
  void Put(const SegmentIdentity& identity, size_t offset, const char* model = "model") {
    SegmentRecord record;
    record.name = identity.name;
    record.parent = identity.parent;
    record.fingerprint_hash = common::FingerprintHash(model);
    record.salt_hash = identity.salt_hash;
    record.token_begin = kSinkTokens + offset;
    record.num_tokens = static_cast<uint32_t>(identity.token_ids.size());
    record.image_bytes = 1;
    record.provenance = identity.provenance;
    ASSERT_TRUE(disk_->Put(record, identity.token_ids, std::vector<std::byte>(1)).ok());
  }
  RestorePlan Plan(const ReserveRequest& request) {
    const TierRows source(store_.directory(), fingerprint_, tier_.get(),
                          request.rows.has_value() ? request.rows->sequence_id : 0);
    return request.rows.has_value() ? PlanRows(request, source) : PlanSegments(request, source);
  }
  static std::vector<SegmentName> Names(const RestorePlan& plan) {
    std::vector<SegmentName> names;
    for (const SegmentRecord& record : plan.records) names.push_back(record.name);
    return names;
  }
  ReserveRequest MainRequest(size_t count) const {
    ReserveRequest request = ChainRequest(1, text_.Segments(count, 1024));
    request.made_by = MadeBy("wave");
    for (size_t i = 0; i < count; ++i) request.segments[i].text = text_.TextAt(1024 * (i + 1));
    return request;
  }

  const PromptText text_ = PromptText::Of(4096);
  const common::Hash256 fingerprint_ = common::FingerprintHash("model");
  SegmentStorage* disk_ = nullptr;
  std::unique_ptr<DurableTier> tier_;
};

TEST_F(RestorePlanTest, RowsGoOverArenaAndDisk) {
  const SegmentIdentity first = text_.Block(0), second = text_.Block(64);
  const SegmentIdentity third = text_.Generated(second.name, 128, 64);
  const SegmentIdentity last = text_.Generated(third.name, 192, 10);
  Put(first, 0);
  Save({second}, 64);
  Put(third, 128);
  Put(last, 192);
  const RestorePlan plan = Plan(RowsRequest(1, text_.Rows(0, 1000)));
  EXPECT_THAT(Names(plan), ElementsAre(first.name, third.name, last.name));
  EXPECT_EQ(plan.held.size(), 1u);
  EXPECT_THAT(Names(Plan(RowsRequest(1, text_.Rows(0, 200)))), ElementsAre(first.name, third.name));
  EXPECT_THAT(Names(Plan(RowsRequest(1, text_.Branch(100, 512, 3).Rows(0, 500)))),
              ElementsAre(first.name));
}

TEST_F(RestorePlanTest, WhatIsInProgressEndsThePlan) {
  const SegmentIdentity first = text_.Block(0), second = text_.Block(64);
  Put(first, 0);
  Put(second, 64);
  const ReserveRequest save = ChainRequest(7, {first});
  Reserve(save);
  EXPECT_THAT(Names(Plan(RowsRequest(1, text_.Rows(0, 1000)))), IsEmpty());
}

TEST_F(RestorePlanTest, WhatOtherModelsLeftOrIsNoBlockIsNotRead) {
  Put(text_.Block(0), 0, "another model");
  EXPECT_THAT(Names(Plan(RowsRequest(1, text_.Rows(0, 1000)))), IsEmpty());
  // As a damaged disk may have it: at a place where no block is.
  Put(text_.Block(64), 63);
  EXPECT_THAT(Names(Plan(RowsRequest(1, text_.Rows(64, 1000)))), IsEmpty());
}

TEST_F(RestorePlanTest, AMainRequestReadsGeneratedSegmentsBeforeExactOnes) {
  const auto chain = text_.Segments(4, 1024);
  Save({chain[0]});
  Put(chain[1], 1024);
  const SegmentIdentity third = text_.Generated(text_.TextAt(2048), 2048, 1024);
  const SegmentIdentity fourth = text_.Generated(third.name, 3072, 1024);
  Put(third, 2048);
  Put(text_.Segments(3, 1024)[2], 2048);
  Put(fourth, 3072);
  Put(chain[3], 3072);  // does not follow generated KV
  const RestorePlan plan = Plan(MainRequest(4));
  EXPECT_THAT(Names(plan), ElementsAre(chain[1].name, third.name, fourth.name));
  EXPECT_EQ(plan.held.size(), 1u);
  ReserveRequest exact = MainRequest(4);
  exact.made_by.reset();
  EXPECT_THAT(Names(Plan(exact)), ElementsAre(chain[1].name, chain[2].name, chain[3].name));
}

}  // namespace
}  // namespace retroinfer::kvstore
