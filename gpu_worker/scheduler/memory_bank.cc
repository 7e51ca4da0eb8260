#include "gpu_worker/scheduler/memory_bank.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace retroinfer {
namespace {

using Blocks = MemoryBank::Blocks;

bool Holds(RequestPhase phase) {
  return phase != RequestPhase::kWaiting && phase != RequestPhase::kSuspended;
}

Blocks TakenBy(const RequestDescription& request) {
  return {.dense = request.dense_blocks, .meta = request.meta_blocks};
}
Blocks AskedBy(const RequestDescription& request) {
  return {.dense = request.asked_dense_blocks, .meta = request.asked_meta_blocks};
}

}  // namespace

MemoryBank::MemoryBank(const SchedulerInput& input, const OutputLengths& lengths)
    : lengths_(lengths), free_{.dense = input.free_dense_blocks, .meta = input.free_meta_blocks} {
  accounts_.reserve(input.requests.size());
  for (const RequestDescription& request : input.requests) {
    if (Holds(request.phase)) accounts_.push_back(AccountOf(request));
  }
}

MemoryBank::Account MemoryBank::AccountOf(const RequestDescription& request) const {
  Account account{.id = request.id,
                  .held = TakenBy(request),
                  .more = {},
                  .expected = {},
                  .has_extents = request.wants_extents};
  if (request.phase == RequestPhase::kLeaving) return account;  // copying out takes no blocks
  account.more = {.dense = request.more_dense_blocks, .meta = request.more_meta_blocks};
  account.expected = account.more;
  if (request.tokens_left <= 0) return account;
  const int64_t left = lengths_.Expected(request) - request.tokens_generated;
  account.tokens_expected = std::clamp<int64_t>(left, 0, request.tokens_left);
  const double share =
      std::clamp(static_cast<double>(left) / static_cast<double>(request.tokens_left), 0.0, 1.0);
  const auto part = [share](int64_t blocks) {
    return static_cast<int64_t>(std::ceil(share * static_cast<double>(blocks)));
  };
  account.expected = {.dense = part(account.more.dense), .meta = part(account.more.meta)};
  return account;
}

// Requests that need least end first: their blocks are free for the others later. The order decides
// nothing but the time that this takes: whoever can end in one order can end in all.
std::vector<bool> MemoryBank::CanEnd(const std::vector<Account>& accounts, Blocks free) {
  std::vector<size_t> order(accounts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return accounts[a].more.dense < accounts[b].more.dense; });
  std::vector<bool> can_end(accounts.size(), false);
  for (bool any = true; any;) {
    any = false;
    for (const size_t i : order) {
      if (can_end[i] || !accounts[i].more.FitInto(free)) continue;
      can_end[i] = any = true;
      free += accounts[i].held;
    }
  }
  return can_end;
}

bool MemoryBank::IsAsSafe(const std::vector<Account>& after, size_t changed,
                          const Blocks& free) const {
  const bool all_could_be_next = std::all_of(
      after.begin(), after.end(), [&](const Account& one) { return one.more.FitInto(free); });
  // The usual case, at O(accounts): any order of ends is possible.
  if (all_could_be_next) return true;
  const std::vector<bool> can_end = CanEnd(after, free);
  if (!can_end[changed]) return false;
  if (std::all_of(can_end.begin(), can_end.end(), [](bool can) { return can; })) return true;
  // Requests that could not end before either (the input described fewer blocks than come free) are
  // no reason to refuse others.
  const std::vector<bool> could_end = CanEnd(accounts_, free_);
  for (size_t i = 0; i < could_end.size(); ++i) {
    if (could_end[i] && !can_end[i]) return false;
  }
  return true;
}

bool MemoryBank::TakesNone(const RequestDescription& request) {
  return request.dense_blocks + request.more_dense_blocks + request.meta_blocks +
             request.more_meta_blocks ==
         0;
}

bool MemoryBank::MayBegin(const RequestDescription& request) const {
  if (TakesNone(request)) return true;
  const Account account = AccountOf(request);
  return Fits(account) && LeavesReservation(account);
}

bool MemoryBank::Fits(const Account& newcomer) const {
  if (!newcomer.held.FitInto(free_)) return false;
  Blocks free = free_;
  free -= newcomer.held;
  Blocks expected = newcomer.expected;
  for (const Account& one : accounts_) expected += one.expected;
  // That all can end is not enough: requests that are expected to take more blocks than there are
  // would stall in turn.
  if (!expected.FitInto(free)) return false;
  std::vector<Account> after = accounts_;
  after.push_back(newcomer);
  return IsAsSafe(after, accounts_.size(), free);
}

MemoryBank::Account MemoryBank::With(int64_t Blocks::*kind, Account account) {
  for (Blocks* const blocks : {&account.held, &account.more, &account.expected}) {
    const int64_t count = blocks->*kind;
    *blocks = {};
    blocks->*kind = count;
  }
  return account;
}

MemoryBank MemoryBank::With(int64_t Blocks::*kind) const {
  MemoryBank bank = *this;
  bank.free_ = {};
  bank.free_.*kind = free_.*kind;
  for (Account& account : bank.accounts_) account = With(kind, account);
  return bank;
}

// Where requests took more blocks than was expected of them, the head of line may not fit even
// after the ends that its reservation waits for. Then no newcomer may take blocks of the kind that
// the head of line lacks: each kind is judged alone, so that a kind that suffices stays open.
bool MemoryBank::LeavesReservation(const Account& newcomer) const {
  if (!reservation_.has_value()) return true;
  MemoryBank later = *this;
  later.reservation_.reset();
  for (const uint64_t id : reservation_->ends) later.End(id);
  const auto fits_beside_it = [this](MemoryBank bank, const Account& one,
                                     const Account& reservation) {
    bank.accounts_.push_back(one);
    bank.free_ -= one.held;
    return bank.Fits(reservation);
  };
  if (later.Fits(reservation_->account))
    return fits_beside_it(later, newcomer, reservation_->account);
  for (int64_t Blocks::*const kind : {&Blocks::dense, &Blocks::meta}) {
    if (newcomer.held.*kind + newcomer.more.*kind == 0) continue;
    if (!fits_beside_it(later.With(kind), With(kind, newcomer),
                        With(kind, reservation_->account))) {
      return false;
    }
  }
  return true;
}

void MemoryBank::Begin(const RequestDescription& request) {
  accounts_.push_back(AccountOf(request));
  free_ -= accounts_.back().held;
}

bool MemoryBank::MayGrow(const RequestDescription& request) const {
  const Blocks asked = AskedBy(request);
  if (!asked.FitInto(free_)) return false;
  std::vector<Account> after = accounts_;
  const auto found = std::find_if(after.begin(), after.end(),
                                  [&](const Account& one) { return one.id == request.id; });
  if (found == after.end()) return false;
  // What others are expected to take does not count here: a request that decodes ends soonest if it
  // goes on.
  Blocks free = free_;
  free -= asked;
  found->held += asked;
  found->more -= asked;
  return IsAsSafe(after, static_cast<size_t>(found - after.begin()), free);
}

void MemoryBank::Grow(const RequestDescription& request) {
  const Blocks asked = AskedBy(request);
  for (Account& account : accounts_) {
    if (account.id != request.id) continue;
    account.held += asked;
    account.more -= asked;
    account.expected -= asked;
    account.expected = {.dense = std::max<int64_t>(account.expected.dense, 0),
                        .meta = std::max<int64_t>(account.expected.meta, 0)};
    free_ -= asked;
    return;
  }
}

void MemoryBank::Suspend(uint64_t id) {
  for (Account& account : accounts_) {
    if (account.id != id) continue;
    account.more = account.expected = {};
    account.tokens_expected = 0;
  }
}

void MemoryBank::End(uint64_t id) {
  const auto found = std::find_if(accounts_.begin(), accounts_.end(),
                                  [id](const Account& one) { return one.id == id; });
  if (found == accounts_.end()) return;
  free_ += found->held;
  accounts_.erase(found);
}

size_t MemoryBank::ReserveFor(const RequestDescription& request,
                              absl::FunctionRef<bool(uint64_t)> may_wait_for,
                              bool waits_for_extents) {
  std::vector<const Account*> holders;
  for (const Account& account : accounts_) {
    if (may_wait_for(account.id)) holders.push_back(&account);
  }
  // The earliest ends first: the fewer tokens a request has left, the sooner the head of line
  // begins.
  std::stable_sort(holders.begin(), holders.end(), [](const Account* one, const Account* other) {
    return one->tokens_expected < other->tokens_expected;
  });
  Reservation reservation{.account = AccountOf(request), .ends = {}};
  MemoryBank later = *this;
  later.reservation_.reset();
  for (const Account* const account : holders) {
    if (!waits_for_extents && later.Fits(reservation.account)) break;
    waits_for_extents = waits_for_extents && !account->has_extents;
    later.End(account->id);
    reservation.ends.push_back(account->id);
  }
  const size_t count = reservation.ends.size();
  reservation_ = std::move(reservation);
  return count;
}

}  // namespace retroinfer
