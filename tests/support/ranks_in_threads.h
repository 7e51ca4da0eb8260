// Rank 0's engine and other ranks in one process: each rank has an executor, an arena and a thread
// of its own, and computes the whole model.
#pragma once

#include <algorithm>
#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gpu_worker/ranks/rank_follower.h"
#include "gpu_worker/ranks/rank_group.h"
#include "tests/support/in_process_worker.h"

namespace retroinfer::test_support {

// Threads: one.
class RanksInThreads {
 public:
  // `options` are rank 0's. With one rank there is the engine alone.
  RanksInThreads(InProcessWorkerOptions options, int num_ranks) {
    options.num_ranks = num_ranks;
    const int64_t max_model_len = options.max_model_len;
    for (int rank = 1; rank < num_ranks; ++rank) {
      auto ends = RankChannel::MakePair();
      RI_CHECK(ends.ok());
      auto& follower = *followers_.emplace_back(std::make_unique<Follower>());
      follower.channel = std::make_unique<RankChannel>(std::move(ends->first));
      auto theirs = std::make_shared<RankChannel>(std::move(ends->second));
      InProcessWorkerOptions of_rank = options;
      of_rank.is_commanded = true;
      of_rank.drawing = Drawing::kElsewhere;
      of_rank.hooks = {};
      follower.worker = std::make_unique<InProcessWorker>(of_rank);
      follower.thread = std::thread([&follower, theirs, max_model_len] {
        InProcessWorker& worker = *follower.worker;
        follower.end = RankFollower({.channel = theirs.get(),
                                     .commands = &worker.commands(),
                                     .written = &worker.written(),
                                     .limits = {.vocab_size = worker.config().vocab_size,
                                                .max_model_len = max_model_len}})
                           .Run();
      });
    }
    if (num_ranks > 1) options.hooks = StartGroup(max_model_len);
    worker_ = std::make_unique<InProcessWorker>(options);
    is_made_.Notify();
  }
  ~RanksInThreads() { (void)End(); }

  InProcessWorker& worker() { return *worker_; }
  RankGroup& group() { return *group_; }
  InProcessWorker& worker_of(int rank) {
    return *followers_[static_cast<size_t>(rank) - 1]->worker;
  }
  size_t num_written() const { return num_written_; }
  // Ends the engine, then the ranks; returns how the first one has ended that did not end well.
  absl::Status End() {
    worker_->EndEngine();
    group_.reset();
    absl::Status first;
    for (const auto& follower : followers_) {
      if (follower->thread.joinable()) follower->thread.join();
      first.Update(follower->end);
    }
    return first;
  }
  // How many pages of the arena hold something, if each rank has the same in each of them as rank
  // 0; else 0. What the store has given up, it has filled with one byte.
  size_t NumPagesAlike() {
    constexpr std::byte kGivenUp{0x7f};
    const std::span<const std::byte> own = worker_->store().arena();
    size_t num_pages = 0;
    for (size_t at = 0; at < own.size(); at += kPageBytes) {
      const auto page = own.subspan(at, kPageBytes);
      const auto is = [](std::byte value) { return [value](std::byte b) { return b == value; }; };
      if (std::ranges::all_of(page, is(kGivenUp)) || std::ranges::all_of(page, is({}))) continue;
      ++num_pages;
      for (const auto& follower : followers_) {
        const std::span<const std::byte> theirs = follower->worker->store().arena();
        if (!std::ranges::equal(page, theirs.subspan(at, kPageBytes))) return 0;
      }
    }
    return num_pages;
  }

 private:
  struct Follower {
    std::unique_ptr<RankChannel> channel;
    std::unique_ptr<InProcessWorker> worker;
    std::thread thread;
    absl::Status end;
  };

  CommandHooks StartGroup(int64_t max_model_len) {
    std::vector<RankChannel*> channels;
    for (const auto& follower : followers_) channels.push_back(follower->channel.get());
    RankGroup::Options options{
        .limits = {.vocab_size = followers_.front()->worker->config().vocab_size,
                   .max_model_len = max_model_len},
        .on_written =
            [this](int rank, const WrittenSegment& written) {
              is_made_.WaitForNotification();
              ++num_written_;
              return worker_->joint_store().NoteWritten(rank, written);
            },
        .on_lost =
            [](int rank, const absl::Status& status) {
              std::fprintf(stderr, "rank %d is lost: %s\n", rank, status.ToString().c_str());
              std::abort();
            }};
    auto group = RankGroup::Start(std::move(channels), std::move(options));
    RI_CHECK(group.ok());
    group_ = *std::move(group);
    return group_->Hooks();
  }

  std::vector<std::unique_ptr<Follower>> followers_;
  std::unique_ptr<RankGroup> group_;
  absl::Notification is_made_;
  std::atomic<size_t> num_written_ = 0;
  std::unique_ptr<InProcessWorker> worker_;
};

}  // namespace retroinfer::test_support
