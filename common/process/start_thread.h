// Threads that the system may refuse: others can have taken the last ones since the start.
#pragma once

#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace retroinfer::common {

// Returns a thread that runs `run`; RESOURCE_EXHAUSTED if there is none to be had.
template <typename Run>
absl::StatusOr<std::thread> StartThread(Run run) {
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the system gives no further thread: ", error.what()));
  }
}

// Runs `run` on the calling thread and on up to `num_others` more, as many as there are to be had,
// and returns when all of them have.
template <typename Run>
void RunBeside(size_t num_others, const Run& run) {
  std::vector<std::thread> others;
  others.reserve(num_others);
  while (others.size() < num_others) {
    absl::StatusOr<std::thread> other = StartThread([&run] { run(); });
    if (!other.ok()) break;
    others.push_back(*std::move(other));
  }
  run();
  for (std::thread& thread : others) thread.join();
}

}  // namespace retroinfer::common
