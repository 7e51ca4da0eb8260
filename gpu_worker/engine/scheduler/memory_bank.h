// Whether what requests hold of the device's blocks, and may still need of them, can come to a good
// end: the banker's algorithm (Dijkstra, EWD-623), with pools for loans.
//
// Somebody who holds blocks *can end* if there is an order in which he and those before him can
// each get all that they may still need out of what is free and what those before gave back at
// their ends. Nothing is given to anyone who could not end then, nor so that another one cannot end
// who could before. So whoever was let in gets all he needs sooner or later, whatever the others
// do, and nobody has to end for lack of memory.
//
// What comes free when somebody ends may be told as less than it is (blocks that he shares with
// others): then what is given is less than what could be, and the promise stays.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu_worker/engine/scheduler/output_lengths.h"
#include "gpu_worker/engine/scheduler/step_plan.h"

namespace retroinfer {

class MemoryBank {
 public:
  struct Blocks {
    int64_t dense = 0;
    int64_t meta = 0;

    bool FitInto(const Blocks& others) const {
      return dense <= others.dense && meta <= others.meta;
    }
    void operator+=(const Blocks& more) { dense += more.dense, meta += more.meta; }
    void operator-=(const Blocks& less) { dense -= less.dense, meta -= less.meta; }
  };

  // `lengths` outlives the bank.
  MemoryBank(const SchedulerInput& input, const OutputLengths& lengths);

  // Whether a request that holds nothing may begin or come back: there is what it takes for that,
  // all can end, and as far as can be expected nobody will have to wait for memory half-way.
  bool MayBegin(const RequestDescription& request) const;
  static bool TakesNone(const RequestDescription& request);  // nor ever will
  void Begin(const RequestDescription& request);
  // Whether one that decodes may have what it asks for.
  bool MayGrow(const RequestDescription& request) const;
  void Grow(const RequestDescription& request);
  // Needs no more, and gives up what it holds in a while; at once.
  void Leave(uint64_t id);
  void End(uint64_t id);

  // What is free is kept for somebody, as much as he takes to begin; or all of it.
  void Keep(const RequestDescription& request);
  void KeepAll() { free_ = {.dense = -1, .meta = -1}; }

 private:
  struct Account {
    uint64_t id = 0;
    Blocks held;
    Blocks more;      // that it may need at the most
    Blocks expected;  // of them
  };

  Account AccountOf(const RequestDescription& request) const;
  // Who can end: by account.
  static std::vector<bool> WhoCanEnd(const std::vector<Account>& accounts, Blocks free);
  bool IsAsSafe(const std::vector<Account>& after, size_t changed, const Blocks& free) const;

  const OutputLengths& lengths_;
  std::vector<Account> accounts_;
  Blocks free_;
};

}  // namespace retroinfer
