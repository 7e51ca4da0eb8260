#include "gpu_worker/wave_buffer/absent_pages.h"

#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/support/backends.h"
#include "tests/support/device_data.h"

namespace retroinfer {
namespace {

using namespace test_support;

class AbsentPagesTest : public testing::TestWithParam<BackendParam> {
 protected:
  static constexpr uint64_t kPages = 1000;

  AbsentPagesTest() : pages_(*AbsentPages::Create(*backend_->device, *backend_->stream, kPages)) {}

  // What look-ups do: they list pages, and mark rows.
  void Write(const std::vector<PageId>& asked, const std::vector<size_t>& rows) {
    const AbsentPagesView view = pages_.view();
    std::vector<uint32_t> marks(rows.empty() ? 1 : 1 + *std::ranges::max_element(rows), 0);
    for (const size_t row : rows) marks[row] = 1;
    const std::vector<uint32_t> count = {static_cast<uint32_t>(asked.size())};
    Put(count, DeviceSpan<uint32_t>(view.num_asked, 1));
    Put(marks, view.rows.first(marks.size()));
    if (!asked.empty()) Put(asked, view.asked.first(asked.size()));
  }
  template <typename T>
  void Put(const std::vector<T>& values, DeviceSpan<T> to) {
    ASSERT_TRUE(backend_->device
                    ->Upload(*backend_->stream, std::as_bytes(std::span(values)),
                             DeviceSpan<std::byte>(reinterpret_cast<std::byte*>(to.device_data()),
                                                   to.size() * sizeof(T)))
                    .ok());
    ASSERT_TRUE(backend_->stream->Synchronize().ok());
  }
  void EndStep() {
    ASSERT_TRUE(pages_.EndStep(*backend_->stream).ok());
    ASSERT_TRUE(backend_->stream->Synchronize().ok());
  }

  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceData data_{*backend_};
  AbsentPages pages_;
};

TEST_P(AbsentPagesTest, TheDeviceHasWhatTheHostSays) {
  std::mt19937 random(1);
  std::set<PageId> absent;
  for (int round = 0; round < 30; ++round) {
    const PageId first = random() % kPages;
    const uint32_t count = random() % 200 % (kPages - first) + 1;
    const bool marks = round % 3 != 2;
    marks ? pages_.Mark(first, count) : pages_.Clear(first, count);
    for (PageId page = first; page < first + count; ++page) {
      marks ? (void)absent.insert(page) : (void)absent.erase(page);
    }
    EXPECT_EQ(pages_.any(), !absent.empty());
    ASSERT_TRUE(pages_.BeginStep(*backend_->stream).ok());
    const auto words = data_.Download<AbsentWord>(pages_.view().words);
    for (PageId page = 0; page < kPages; ++page) {
      EXPECT_EQ(pages_.is_absent(page), absent.contains(page)) << page;
      const AbsentWord& word = words[page / 32];
      EXPECT_EQ(word.absent >> (page % 32) & 1, absent.contains(page) ? 1u : 0u) << page;
      EXPECT_EQ(word.asked, 0u);
    }
  }
}

TEST_P(AbsentPagesTest, TellsWhatAStepLackedAndForgetsItInTheNext) {
  pages_.Mark(100, 50);
  ASSERT_TRUE(pages_.BeginStep(*backend_->stream).ok());
  Write({120, 103}, {0, 5});
  EndStep();
  EXPECT_TRUE(pages_.Lacked(0) && pages_.Lacked(5));
  EXPECT_FALSE(pages_.Lacked(1));
  const auto asked = pages_.TakeAsked(*backend_->stream);
  ASSERT_TRUE(asked.ok());
  EXPECT_EQ(std::vector<PageId>(asked->begin(), asked->end()), (std::vector<PageId>{120, 103}));
  ASSERT_TRUE(pages_.BeginStep(*backend_->stream).ok());
  EndStep();
  EXPECT_FALSE(pages_.Lacked(0));
  EXPECT_TRUE(pages_.TakeAsked(*backend_->stream)->empty());
}

TEST_P(AbsentPagesTest, NothingIsCopiedWhileNoPageIsAbsent) {
  pages_.Mark(3, 1);
  ASSERT_TRUE(pages_.BeginStep(*backend_->stream).ok());
  Write({3}, {0});
  EndStep();
  pages_.Clear(0, kPages);
  EXPECT_FALSE(pages_.any());
  ASSERT_TRUE(pages_.BeginStep(*backend_->stream).ok());
  EndStep();
  EXPECT_FALSE(pages_.Lacked(0));
  EXPECT_TRUE(pages_.TakeAsked(*backend_->stream)->empty());
}

INSTANTIATE_TEST_SUITE_P(Backends, AbsentPagesTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
