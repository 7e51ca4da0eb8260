// Grants blocks of device memory such that every request that holds blocks can end: the banker's
// algorithm (Dijkstra, EWD-623), with pools of blocks for loans.
//
// A request that holds blocks *can end* if there is an order of requests in which each can get all
// blocks that it may still need, from what is free and from what the requests before it in the
// order held. The bank grants blocks only if the receiver can end afterwards, and every other
// request that could end before still can. So an admitted request gets all blocks that it needs
// sooner or later, whatever the others do, and no request has to end for lack of memory.
//
// The blocks that come free when a request ends may be described as fewer than they are (blocks
// that it shares with others). The bank then grants fewer blocks than it could, and the promise
// above holds.
//
// A request that waits for blocks to begin does not wait for ever either: the bank makes a
// reservation for one request, the head of line. A reservation waits for the ends of a few
// requests that held blocks when the head of line began to wait: those that are expected to end
// first. A request that begins meanwhile must leave as many blocks as the head of line needs at
// those ends. All other blocks are for everybody. So the head of line begins when those few have
// ended, or at the latest when all requests have ended that held blocks before it, and those that
// overtook it and took more than was expected of them.
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

  // Whether a request that holds nothing may begin or be resumed: its first blocks are free, all
  // requests can end, no request is expected to stall later, and the reservation stays possible.
  bool MayBegin(const RequestDescription& request) const;
  // Whether the request takes no blocks, now or later.
  static bool TakesNone(const RequestDescription& request);
  // Counts the request's first blocks as held. REQUIRES: MayBegin(request), or the caller reserves
  // the blocks for it.
  void Begin(const RequestDescription& request);
  // Whether a decoding request may have the blocks that it asks for.
  bool MayGrow(const RequestDescription& request) const;
  // Counts the blocks that the request asks for as held. REQUIRES: MayGrow(request).
  void Grow(const RequestDescription& request);
  // The request is being suspended: it holds its blocks until the copies are done, and needs no
  // more.
  void Suspend(uint64_t id);
  // The request's blocks are free.
  void End(uint64_t id);

  // Reserves for `request`, in place of any earlier reservation: the blocks that let it begin once
  // some requests have ended. Those are chosen among the requests that hold blocks and that
  // `may_wait_for` accepts, the ones that are expected to end first. If `waits_for_extents`, one of
  // them holds extents of the arena.
  //
  // Returns: how many requests the reservation waits for.
  size_t ReserveFor(const RequestDescription& request,
                    absl::FunctionRef<bool(uint64_t)> may_wait_for, bool waits_for_extents);

 private:
  struct Account {
    uint64_t id = 0;
    Blocks held;
    Blocks more;      // upper bound of the blocks still to be taken
    Blocks expected;  // blocks still to be taken, as far as can be expected; within `more`
    int64_t tokens_expected = 0;  // still to be generated
    bool has_extents = false;
  };
  struct Reservation {
    Account account;
    std::vector<uint64_t> ends;  // requests whose ends the reservation waits for
  };

  Account AccountOf(const RequestDescription& request) const;
  // Which requests can end, by index of `accounts`.
  static std::vector<bool> CanEnd(const std::vector<Account>& accounts, Blocks free);
  // Whether the newcomer may begin, as far as the reservation does not matter.
  bool Fits(const Account& newcomer) const;
  // Whether the reservation can still be fulfilled after the newcomer has begun.
  bool LeavesReservation(const Account& newcomer) const;
  // The bank, or an account, reduced to one kind of blocks.
  MemoryBank With(int64_t Blocks::*kind) const;
  static Account With(int64_t Blocks::*kind, Account account);
  // Whether accounts `after` and `free` blocks are a state in which account `changed` can end, and
  // every request that can end now.
  bool IsAsSafe(const std::vector<Account>& after, size_t changed, const Blocks& free) const;

  const OutputLengths& lengths_;
  std::vector<Account> accounts_;
  Blocks free_;
  std::optional<Reservation> reservation_;
};

}  // namespace retroinfer
