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
// Who waits for blocks to begin with does not wait for ever either: for one such request what it
// lacks is kept. That is what the ends of a few give back that held blocks when it began to wait,
// those that will end first; whoever begins meanwhile leaves it as much as it needs then. So all
// that it does not need then is for the others, and it begins when those few have ended, or at the
// latest when all have that were there before it, and those who passed it and took more than was
// expected of them.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "gpu_worker/scheduler/output_lengths.h"
#include "gpu_worker/scheduler/step_plan.h"

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
  // all can end, as far as can be expected nobody will have to wait for memory half-way, and what
  // is kept for another one stays.
  bool MayBegin(const RequestDescription& request) const;
  static bool TakesNone(const RequestDescription& request);  // nor ever will
  void Begin(const RequestDescription& request);
  // Whether one that decodes may have what it asks for.
  bool MayGrow(const RequestDescription& request) const;
  void Grow(const RequestDescription& request);
  // Needs no more, and gives up what it holds in a while; at once.
  void Leave(uint64_t id);
  void End(uint64_t id);

  // From now on what `request` lacks is kept for it: of those who hold blocks and that `was_there`
  // accepts, as many are taken for ended as let it begin, those that are expected to end first. If
  // it waits for extents of the arena, one of them has some.
  //
  // Returns: how many those are.
  size_t KeepFor(const RequestDescription& request, absl::FunctionRef<bool(uint64_t)> was_there,
                 bool waits_for_extents);

 private:
  struct Account {
    uint64_t id = 0;
    Blocks held;
    Blocks more;      // that it may need at the most
    Blocks expected;  // of them
    int64_t tokens_expected = 0;
    bool has_extents = false;
  };
  struct Kept {
    Account account;
    std::vector<uint64_t> ends;  // those that it waits for
  };

  Account AccountOf(const RequestDescription& request) const;
  // Who can end: by account.
  static std::vector<bool> WhoCanEnd(const std::vector<Account>& accounts, Blocks free);
  bool Fits(const Account& newcomer) const;
  bool LeavesWhatIsKept(const Account& newcomer) const;
  // With one kind of memory as if there were no other.
  MemoryBank With(int64_t Blocks::*kind) const;
  static Account With(int64_t Blocks::*kind, Account account);
  bool IsAsSafe(const std::vector<Account>& after, size_t changed, const Blocks& free) const;

  const OutputLengths& lengths_;
  std::vector<Account> accounts_;
  Blocks free_;
  std::optional<Kept> kept_;
};

}  // namespace retroinfer
