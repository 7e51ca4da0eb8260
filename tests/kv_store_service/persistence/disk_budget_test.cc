#include "kv_store_service/persistence/disk_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <random>

#include "tests/kv_store_service/persistence/sample_segments.h"
#include "tests/support/storage/faulty_segment_storage.h"
#include "tests/support/storage/in_memory_segment_storage.h"

namespace retroinfer::kvstore {
namespace {

using testing::At;
using testing::MakeSample;
using testing::PutSample;
using testing::Sample;

class DiskBudgetTest : public ::testing::Test {
 protected:
  // Puts a segment of 1000 bytes, last used at `seconds`.
  Sample Add(uint64_t seed, int64_t seconds) {
    Sample sample = MakeSample(seed, 1000);
    sample.record.last_use = At(seconds);
    EXPECT_TRUE(PutSample(*storage_, sample).ok());
    return sample;
  }
  bool Has(const Sample& sample) { return storage_->Peek(sample.name()).has_value(); }

  std::unique_ptr<SegmentStorage> storage_ = MakeInMemorySegmentStorage();
  const Hash256 tenant_ = common::SaltHash("");
};

TEST_F(DiskBudgetTest, EvictsTheOldestThatAreFree) {
  const Sample pinned = Add(1, 1), referenced = Add(2, 2), old = Add(3, 3), recent = Add(4, 4);
  ContextRecord context;
  context.context_name = "keep";
  context.segments = {pinned.name()};
  context.pinned = true;
  ASSERT_TRUE(storage_->PutContext(context).ok());
  DiskBudget budget(storage_.get(), {.cap_bytes = 4400},
                    [&](const SegmentName& name) { return name == referenced.name(); });
  ASSERT_TRUE(budget.MakeRoom(0, tenant_, At(9)).ok());
  EXPECT_TRUE(Has(pinned) && Has(referenced) && Has(recent));
  EXPECT_FALSE(Has(old));
  EXPECT_EQ(budget.stats().over_cap_total, 1u);
  EXPECT_EQ(budget.stats().evicted_bytes_total, 1000u);
}

TEST_F(DiskBudgetTest, AnExpiredContextPinsNothing) {
  const Sample sample = Add(1, 1);
  ContextRecord context;
  context.context_name = "keep";
  context.segments = {sample.name()};
  context.pinned = true;
  context.expires = At(5);
  ASSERT_TRUE(storage_->PutContext(context).ok());
  DiskBudget budget(storage_.get(), {.cap_bytes = 1050}, {});
  ASSERT_TRUE(budget.MakeRoom(0, tenant_, At(4)).ok());
  EXPECT_TRUE(Has(sample));
  ASSERT_TRUE(budget.MakeRoom(0, tenant_, At(5)).ok());
  EXPECT_FALSE(Has(sample));
  EXPECT_TRUE(storage_->ListContexts().empty());
  EXPECT_EQ(budget.stats().expired_contexts_total, 1u);
}

TEST_F(DiskBudgetTest, WhatCannotFitIsRefusedWithTheNumbersAndNothingIsEvicted) {
  const Sample sample = Add(1, 1);
  DiskBudget budget(storage_.get(), {.cap_bytes = 2000}, {});
  const absl::Status status = budget.MakeRoom(2001, tenant_, At(9));
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_NE(status.message().find("2001 bytes do not fit: 1000 of at most 2000"),
            absl::string_view::npos)
      << status;
  EXPECT_TRUE(Has(sample));
  EXPECT_EQ(budget.stats().refused_total, 1u);
}

TEST_F(DiskBudgetTest, QuarantineGoesFirst) {
  const Sample bad = Add(1, 9), good = Add(2, 1);
  ASSERT_TRUE(storage_->Quarantine(bad.name(), "test").ok());
  DiskBudget budget(storage_.get(), {.cap_bytes = 1050}, {});
  ASSERT_TRUE(budget.MakeRoom(0, tenant_, At(9)).ok());
  EXPECT_EQ(storage_->Stats().quarantined, 0u);
}

TEST_F(DiskBudgetTest, ErrorsOfTheDiskAreReported) {
  Add(1, 1);
  FaultySegmentStorage faulty(storage_.get());
  faulty.FailWrites(DiskFault::kIoError);
  DiskBudget budget(&faulty, {.cap_bytes = 1000}, {});
  EXPECT_TRUE(absl::IsInternal(budget.MakeRoom(0, tenant_, At(9))));
  EXPECT_EQ(budget.stats().over_cap_total, 0u);
}

// 2,000 random puts and touches under a cap, against a list kept in the order of use.
TEST_F(DiskBudgetTest, EvictsInTheOrderOfANaiveLruList) {
  std::mt19937_64 random(5);
  DiskBudget budget(storage_.get(), {.cap_bytes = 20'000}, {});
  std::list<uint64_t> by_use;  // seeds, the oldest first
  for (int step = 1; step <= 2000; ++step) {
    const uint64_t seed = random() % 60;
    const Sample sample = MakeSample(seed, 1000);
    const auto known = std::find(by_use.begin(), by_use.end(), seed);
    if (known != by_use.end()) {
      by_use.erase(known);
      storage_->Touch({&sample.name(), 1}, At(step));
    } else {
      if ((by_use.size() + 1) * 1000 > 18'000) {
        while ((by_use.size() + 1) * 1000 > 16'000) by_use.pop_front();
      }
      ASSERT_TRUE(budget.MakeRoom(1000, tenant_, At(step)).ok());
      Add(seed, step);
    }
    by_use.push_back(seed);
    ASSERT_LE(storage_->Stats().physical_bytes, 20'000u);
    const auto records = storage_->List();
    ASSERT_EQ(records.size(), by_use.size());
    size_t i = 0;
    for (uint64_t expected : by_use) {
      ASSERT_EQ(records[i++].name, MakeSample(expected, 1000).name()) << "step " << step;
    }
  }
}

}  // namespace
}  // namespace retroinfer::kvstore
