#include "client/serve/settings_check.h"

#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "client/command/exit_code.h"
#include "client/serve/child_process.h"
#include "common/clock/steady_now.h"
#include "common/shm/unique_fd.h"
#include "common/status/errno_status.h"
#include "common/status/status_macros.h"

namespace retroinfer::client {
namespace {

constexpr absl::Duration kPollInterval = absl::Milliseconds(50);
constexpr size_t kSaidBytesMax = 1 << 14;

// The beginning of what a program wrote into the file.
std::string Said(int fd) {
  std::array<char, kSaidBytesMax> buffer;
  const ssize_t size = ::pread(fd, buffer.data(), buffer.size(), 0);
  const std::string text(buffer.data(), static_cast<size_t>(size < 0 ? 0 : size));
  return std::string(absl::StripAsciiWhitespace(text));
}

}  // namespace

absl::Status CheckSettings(const ServiceSpec& spec, const std::function<int()>& should_stop,
                           absl::Duration patience) {
  const common::UniqueFd output(::memfd_create("retroinfer settings check", MFD_CLOEXEC));
  if (!output.valid()) return common::ErrnoStatus(errno, "memfd_create");
  std::vector<std::string> arguments = spec.arguments;
  arguments.push_back("--check-settings");
  ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start(arguments, output.get()));
  const absl::Time deadline = common::SteadyNow() + patience;
  std::optional<ProcessEnd> end;
  while (!(end = process.Wait(kPollInterval)).has_value()) {
    if (should_stop() > 0) return absl::CancelledError("stopped");
    if (common::SteadyNow() < deadline) continue;
    return absl::DeadlineExceededError(
        absl::StrCat(spec.name, " has not checked its settings within ",
                     absl::FormatDuration(patience), ": does the device answer?"));
  }
  if (end->signal == 0 && end->exit_code == kExitOk) return absl::OkStatus();
  std::string message = Said(output.get());
  if (message.empty()) message = absl::StrCat(spec.name, " ended: ", end->ToString());
  return end->signal == 0 && end->exit_code == kExitUsage ? absl::InvalidArgumentError(message)
                                                          : absl::FailedPreconditionError(message);
}

}  // namespace retroinfer::client
