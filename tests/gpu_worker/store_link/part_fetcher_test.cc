#include "gpu_worker/store_link/part_fetcher.h"

#include <gtest/gtest.h>

#include <atomic>
#include <utility>

#include "absl/synchronization/notification.h"
#include "tests/gpu_worker/store_link/in_process_store.h"

namespace retroinfer {
namespace {

absl::StatusOr<std::vector<uint32_t>> Fetch(PartFetcher& fetcher, const std::string& token,
                                            const std::vector<PartsOfExtent>& wanted) {
  absl::Notification done;
  absl::StatusOr<std::vector<uint32_t>> there;
  fetcher.Fetch(token, wanted, absl::Seconds(30), [&](absl::StatusOr<std::vector<uint32_t>> got) {
    there = std::move(got);
    done.Notify();
  });
  done.WaitForNotification();
  return there;
}

TEST(PartFetcher, IsUnavailableWithoutAStoreAndTellsWhatTheStoreSays) {
  InProcessStore store;
  PartFetcher fetcher(store.target());
  EXPECT_TRUE(absl::IsPermissionDenied(Fetch(fetcher, "no token", {}).status()));
  store.Stop();
  EXPECT_TRUE(absl::IsUnavailable(Fetch(fetcher, "no token", {{1, {0, 1}}}).status()));
}

TEST(PartFetcher, ItsEndCancelsWhatIsUnderWay) {
  std::atomic<int> num_ended = 0;
  {
    PartFetcher fetcher("unix:/nowhere/kv_store.sock");
    for (int i = 0; i < 3; ++i) {
      fetcher.Fetch("token", {{1, {0, 1}}}, absl::Minutes(10),
                    [&](const absl::StatusOr<std::vector<uint32_t>>& got) {
                      EXPECT_FALSE(got.ok());
                      ++num_ended;
                    });
    }
  }
  EXPECT_EQ(num_ended, 3);
}

}  // namespace
}  // namespace retroinfer
