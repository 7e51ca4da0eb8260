// How much output all clients together may leave unread.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

namespace retroinfer {

// While all calls together are within the limit, each may keep what it has. Beyond it only those
// may that have no more than an equal share, so those that read slowly give way, and all together
// stay under twice the limit.
//
// Threads: any; a Share one at a time.
class PendingBudget {
 public:
  explicit PendingBudget(size_t limit_bytes) : limit_(static_cast<int64_t>(limit_bytes)) {}

  // What one call has.
  class Share {
   public:
    // `budget` null: there is no limit.
    explicit Share(std::shared_ptr<PendingBudget> budget) : budget_(std::move(budget)) {
      if (budget_ != nullptr) ++budget_->calls_;
    }
    ~Share() {
      if (budget_ == nullptr) return;
      budget_->bytes_ -= bytes_;
      --budget_->calls_;
    }
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // Returns whether the call may keep as much as that.
    bool Set(size_t bytes) {
      if (budget_ == nullptr) return true;
      const int64_t change = static_cast<int64_t>(bytes) - bytes_;
      bytes_ += change;
      if ((budget_->bytes_ += change) <= budget_->limit_) return true;
      return bytes_ <= budget_->limit_ / std::max<int64_t>(1, budget_->calls_);
    }

   private:
    const std::shared_ptr<PendingBudget> budget_;
    int64_t bytes_ = 0;
  };

  int64_t bytes() const { return bytes_; }

 private:
  const int64_t limit_;
  std::atomic<int64_t> bytes_{0};
  std::atomic<int64_t> calls_{0};
};

}  // namespace retroinfer
