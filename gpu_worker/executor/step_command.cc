#include "gpu_worker/executor/step_command.h"

#include <algorithm>
#include <concepts>
#include <tuple>

namespace retroinfer {
namespace {

template <typename Command>
auto ListsOf(Command& command) {
  return std::tie(command.open, command.drop, command.let_go, command.claim, command.put_back,
                  command.leave, command.rejoin, command.rewind, command.give_back,
                  command.lengthen, command.suspend, command.grow, command.resume, command.admit,
                  command.begin, command.passes, command.measure, command.finish, command.save,
                  command.end_save, command.rows);
}

}  // namespace

bool StepCommand::empty() const {
  return std::apply([](const auto&... lists) { return (lists.empty() && ...); }, ListsOf(*this));
}

void StepCommand::Clear() {
  std::apply([](auto&... lists) { (lists.clear(), ...); }, ListsOf(*this));
}

std::vector<uint64_t> StepCommand::Sequences() const {
  std::vector<uint64_t> ids;
  const auto add = [&ids](const auto& list) {
    for (const auto& item : list) {
      if constexpr (std::same_as<decltype(item), const uint64_t&>) {
        ids.push_back(item);
      } else if constexpr (std::same_as<decltype(item), const Group&>) {
        ids.insert(ids.end(), item.members.begin(), item.members.end());
      } else {
        ids.push_back(item.id);
      }
    }
  };
  const auto add_all = [&add](const auto&... lists) { (add(lists), ...); };
  add_all(open, drop, let_go, claim, put_back, leave, rejoin, rewind, give_back, lengthen, suspend,
          grow, resume, admit, begin, finish, save, rows);
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

}  // namespace retroinfer
