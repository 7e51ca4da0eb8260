#include "gpu_worker/kv/partial_segments.h"

#include <gtest/gtest.h>

#include "common/kv/segment_layout.h"
#include "common/status/error_reason.h"
#include "tests/support/backends.h"

namespace retroinfer {
namespace {

using namespace test_support;

constexpr KvGeometry kGeometry = {1, 1, 128, kBf16Kv};
constexpr uint32_t kPart = 4096;  // two pages

class PartialSegmentsTest : public testing::TestWithParam<BackendParam> {
 protected:
  PartialSegmentsTest()
      : pages_(*AbsentPages::Create(*backend_->device, *backend_->stream, 4000)),
        partial_(&pages_, backend_->stream.get(), kGeometry,
                 [this](std::vector<PartsOfExtent> wanted,
                        std::function<void(PartialSegments::Answer)> done) {
                   all_wanted_.push_back(wanted);
                   wanted_ = std::move(wanted);
                   done_.push_back(std::move(done));
                 }) {}

  static uint32_t IndexPages() { return SegmentLayout(kGeometry, 1024).first_kv_page; }
  static Extent Partial(uint64_t id, PageId first_page, uint32_t num_pages = 1000) {
    Extent extent;
    extent.id = id;
    extent.first_page = first_page;
    extent.num_pages = num_pages;
    extent.num_tokens = 1024;
    extent.cached = true;
    extent.part_bytes = kPart;
    return extent;
  }
  void Claim(uint64_t sequence_id, const Extent& extent) {
    partial_.Claim(sequence_id, std::span(&extent, 1));
  }
  // A step comes to these absent pages.
  void Step(const std::vector<PageId>& asked, std::vector<uint64_t> lacking = {1}) {
    ASSERT_TRUE(pages_.BeginStep(*backend_->stream).ok());
    const std::vector<uint32_t> count = {static_cast<uint32_t>(asked.size())};
    Put(std::as_bytes(std::span(count)), pages_.view().num_asked);
    Put(std::as_bytes(std::span(asked)), pages_.view().asked.device_data());
    ASSERT_TRUE(pages_.EndStep(*backend_->stream).ok());
    ASSERT_TRUE(backend_->stream->Synchronize().ok());
    ASSERT_TRUE(partial_.AskFor(std::move(lacking)).ok());
  }
  void Put(std::span<const std::byte> bytes, void* to) {
    ASSERT_TRUE(backend_->device
                    ->Upload(*backend_->stream, bytes,
                             DeviceSpan<std::byte>(static_cast<std::byte*>(to), bytes.size()))
                    .ok());
    ASSERT_TRUE(backend_->stream->Synchronize().ok());
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  AbsentPages pages_;
  std::vector<PartsOfExtent> wanted_;                   // of the last call
  std::vector<std::vector<PartsOfExtent>> all_wanted_;  // by call
  std::vector<std::function<void(PartialSegments::Answer)>> done_;
  PartialSegments partial_;
};

TEST_P(PartialSegmentsTest, PagesBehindTheIndexAreAbsentUntilTheyAreThere) {
  Claim(1, Partial(7, 1000));
  EXPECT_FALSE(pages_.is_absent(1000 + IndexPages() - 1));
  EXPECT_TRUE(pages_.is_absent(1000 + IndexPages()));
  EXPECT_TRUE(pages_.is_absent(1999));
  EXPECT_FALSE(pages_.is_absent(2000));
  EXPECT_TRUE(*partial_.IsReady(1));
  Step({1900, 1901, 1500, 1999});
  EXPECT_FALSE(*partial_.IsReady(1));
  ASSERT_EQ(wanted_.size(), 1u);
  EXPECT_EQ(wanted_[0].extent_id, 7u);
  EXPECT_EQ(wanted_[0].runs, (std::vector<uint32_t>{250, 1, 450, 1, 499, 1}));
  done_[0](std::vector<uint32_t>{300});
  EXPECT_TRUE(*partial_.IsReady(1));
  for (const PageId page : {1500, 1501, 1900, 1901, 1998, 1999, 1599}) {
    EXPECT_FALSE(pages_.is_absent(page)) << page;
  }
  EXPECT_TRUE(pages_.is_absent(1600));
  EXPECT_TRUE(pages_.is_absent(1902));
  Step({1700});
  done_[1](std::vector<uint32_t>{kAllParts});
  EXPECT_TRUE(*partial_.IsReady(1));
  EXPECT_FALSE(pages_.any());
}

TEST_P(PartialSegmentsTest, WhoHasNothingPartialIsNotKept) {
  Extent whole = Partial(7, 1000);
  whole.part_bytes = 0;
  Claim(1, whole);
  EXPECT_FALSE(pages_.any());
  Claim(2, Partial(8, 2000));
  Step({2999}, {2});
  EXPECT_FALSE(*partial_.IsReady(2));
  EXPECT_TRUE(*partial_.IsReady(1));
  partial_.LetGo(1);
}

TEST_P(PartialSegmentsTest, TheLastSequenceThatLetsGoClearsThePages) {
  Claim(1, Partial(7, 1000));
  Claim(2, Partial(7, 1000));
  Step({1999});
  partial_.LetGo(1);
  EXPECT_TRUE(pages_.any());
  EXPECT_TRUE(*partial_.IsReady(2));  // has lacked nothing so far
  partial_.LetGo(2);
  EXPECT_FALSE(pages_.any());
  done_[0](std::vector<uint32_t>{5});  // comes too late, and for another's pages
  Claim(3, Partial(9, 1000));
  EXPECT_TRUE(*partial_.IsReady(3));
  EXPECT_TRUE(pages_.is_absent(1999));
}

TEST_P(PartialSegmentsTest, WhatTheStoreSharesAsAWholeIsThere) {
  Claim(1, Partial(7, 1000));
  Extent whole = Partial(7, 1000);
  whole.part_bytes = 0;
  Claim(2, whole);
  EXPECT_FALSE(pages_.any());
  EXPECT_TRUE(*partial_.IsReady(1));
}

TEST_P(PartialSegmentsTest, WhatDoesNotComeEndsThoseWhoAskedForIt) {
  Claim(1, Partial(7, 1000));
  Claim(2, Partial(8, 2000));
  Step({1999});
  done_[0](absl::DataLossError("damaged"));
  const absl::Status status = partial_.IsReady(1).status();
  EXPECT_TRUE(absl::IsUnavailable(status));
  EXPECT_EQ(common::ReasonOf(status).reason, "KV_NOT_READ");
  EXPECT_TRUE(*partial_.IsReady(2));
}

// The store may call two extents the same pages, and one of the two whole.
TEST_P(PartialSegmentsTest, WhoLacksPagesOfAnotherWaitsForThem) {
  Claim(1, Partial(7, 1000));
  Step({1999}, {5});
  ASSERT_EQ(done_.size(), 1u);
  EXPECT_FALSE(*partial_.IsReady(5));
  EXPECT_TRUE(*partial_.IsReady(1)) << "it has lacked nothing";
  done_[0](std::vector<uint32_t>{0});
  EXPECT_TRUE(*partial_.IsReady(5));
  partial_.LetGo(5);
  EXPECT_TRUE(pages_.any()) << "the segment is another's";
}

TEST_P(PartialSegmentsTest, WhatDoesNotComeOfOneTextEndsNobodyWhoReadsAnother) {
  Claim(1, Partial(7, 0));
  Claim(2, Partial(7, 0));
  Claim(2, Partial(8, 1000));
  Claim(3, Partial(9, 2000));
  Step({999, 1999, 2999}, {1, 2, 3});
  ASSERT_EQ(all_wanted_.size(), 3u);
  for (size_t call = 0; call < 3; ++call) {
    ASSERT_EQ(all_wanted_[call].size(), 1u);
    EXPECT_EQ(all_wanted_[call][0].extent_id, 7 + call);
  }
  done_[1](absl::DataLossError("damaged"));  // of the second sequence alone
  EXPECT_TRUE(absl::IsUnavailable(partial_.IsReady(2).status()));
  EXPECT_FALSE(*partial_.IsReady(1));
  done_[0](std::vector<uint32_t>{0});
  EXPECT_TRUE(*partial_.IsReady(1));
  EXPECT_FALSE(*partial_.IsReady(3));
  done_[2](absl::DataLossError("damaged"));
  EXPECT_TRUE(absl::IsUnavailable(partial_.IsReady(3).status()));
  EXPECT_TRUE(*partial_.IsReady(1));
}

TEST_P(PartialSegmentsTest, ASequenceThatClaimsAnExtentTwiceHoldsItOnce) {
  Claim(1, Partial(7, 1000));
  Claim(1, Partial(7, 1000));
  partial_.LetGo(1);
  EXPECT_FALSE(pages_.any());
}

INSTANTIATE_TEST_SUITE_P(Backends, PartialSegmentsTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
