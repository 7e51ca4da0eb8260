#include "gpu_worker/server/task_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "absl/synchronization/notification.h"

namespace retroinfer {
namespace {

TEST(TaskPool, OneThreadKeepsTheOrder) {
  std::vector<int> order;
  {
    TaskPool pool(1);
    for (int i = 0; i < 1000; ++i) pool.Post([&order, i] { order.push_back(i); });
  }
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
}

TEST(TaskPool, SeveralThreadsRunTasksAtOnce) {
  TaskPool pool(2);
  absl::Notification first, second;
  pool.Post([&] {
    second.WaitForNotification();
    first.Notify();
  });
  pool.Post([&] { second.Notify(); });
  first.WaitForNotification();
}

TEST(TaskPool, TasksMayPostTasks) {
  std::atomic<int> runs{0};
  TaskPool pool(2);
  absl::Notification done;
  pool.Post([&] {
    ++runs;
    pool.Post([&] {
      ++runs;
      done.Notify();
    });
  });
  done.WaitForNotification();
  EXPECT_EQ(runs, 2);
}

}  // namespace
}  // namespace retroinfer
