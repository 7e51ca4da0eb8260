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
  if (request.phase == RequestPhase::kLeaving) return account;  // it needs no more to leave
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

// Those who need least first: what they give back is there for the others.
std::vector<bool> MemoryBank::WhoCanEnd(const std::vector<Account>& accounts, Blocks free) {
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

// Whether `changed` can end after a gift that leaves `free`, and all others who could before.
bool MemoryBank::IsAsSafe(const std::vector<Account>& after, size_t changed,
                          const Blocks& free) const {
  const bool all_could_be_next = std::all_of(
      after.begin(), after.end(), [&](const Account& one) { return one.more.FitInto(free); });
  if (all_could_be_next) return true;
  const std::vector<bool> can_end = WhoCanEnd(after, free);
  if (!can_end[changed]) return false;
  if (std::all_of(can_end.begin(), can_end.end(), [](bool can) { return can; })) return true;
  const std::vector<bool> could_end = WhoCanEnd(accounts_, free_);
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
  return Fits(account) && LeavesWhatIsKept(account);
}

bool MemoryBank::Fits(const Account& newcomer) const {
  if (!newcomer.held.FitInto(free_)) return false;
  Blocks free = free_;
  free -= newcomer.held;
  Blocks expected = newcomer.expected;
  for (const Account& one : accounts_) expected += one.expected;
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

// Where others have taken more than was expected of them, what is kept may not fit even when those
// have ended that it waits for. Then nobody takes more of the kind of memory that it lacks.
bool MemoryBank::LeavesWhatIsKept(const Account& newcomer) const {
  if (!kept_.has_value()) return true;
  MemoryBank then = *this;
  then.kept_.reset();
  for (const uint64_t id : kept_->ends) then.End(id);
  const auto fits_beside_it = [this](MemoryBank bank, const Account& one, const Account& kept) {
    bank.accounts_.push_back(one);
    bank.free_ -= one.held;
    return bank.Fits(kept);
  };
  if (then.Fits(kept_->account)) return fits_beside_it(then, newcomer, kept_->account);
  for (int64_t Blocks::*const kind : {&Blocks::dense, &Blocks::meta}) {
    if (newcomer.held.*kind + newcomer.more.*kind == 0) continue;
    if (!fits_beside_it(then.With(kind), With(kind, newcomer), With(kind, kept_->account))) {
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

void MemoryBank::Leave(uint64_t id) {
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

size_t MemoryBank::KeepFor(const RequestDescription& request,
                           absl::FunctionRef<bool(uint64_t)> was_there, bool waits_for_extents) {
  std::vector<const Account*> there;
  for (const Account& account : accounts_) {
    if (was_there(account.id)) there.push_back(&account);
  }
  std::stable_sort(there.begin(), there.end(), [](const Account* one, const Account* other) {
    return one->tokens_expected < other->tokens_expected;
  });
  Kept kept{.account = AccountOf(request), .ends = {}};
  MemoryBank then = *this;
  then.kept_.reset();
  for (const Account* const account : there) {
    if (!waits_for_extents && then.Fits(kept.account)) break;
    waits_for_extents = waits_for_extents && !account->has_extents;
    then.End(account->id);
    kept.ends.push_back(account->id);
  }
  const size_t count = kept.ends.size();
  kept_ = std::move(kept);
  return count;
}

}  // namespace retroinfer
