// An executor in a process of its own, which knows what it is sent and no more: commands come over
// the socket with descriptor 3, and what came of each goes back.
#include <cstdio>
#include <thread>

#include "absl/time/clock.h"
#include "gpu_worker/executor/result_codec.h"
#include "tests/support/commanded_options.h"
#include "tests/support/message_socket.h"

namespace retroinfer::test_support {
namespace {

// Returns the answer to a message; a command that cannot be is answered, and changes nothing.
std::string Answer(CommandRunner& commands, std::string_view message, const CodecLimits& limits) {
  CommandResult result;
  absl::StatusOr<StepCommand> command = DecodeCommand(message, limits);
  result.refused = command.status();
  if (command.ok()) {
    commands.Tend();
    absl::StatusOr<bool> is_ready = commands.IsReady(*command);
    const absl::Time begun = absl::Now();
    while (is_ready.ok() && !*is_ready) {
      if (absl::Now() - begun > absl::Seconds(60)) {
        is_ready = absl::DeadlineExceededError("the background is not as far as the command wants");
        break;
      }
      std::this_thread::yield();
      commands.Tend();
      is_ready = commands.IsReady(*command);
    }
    result.refused = is_ready.status();
    if (is_ready.ok()) commands.CarryOut(*command, result);
  }
  return EncodeResult(result);
}

int Main() {
  MessageSocket socket(3);
  InProcessWorkerOptions options = CommandedOptions();
  options.is_commanded = true;
  InProcessWorker worker(options);
  const CodecLimits limits = CommandedLimits(worker.config());
  worker.commands().executor().parts().segments->SetUrgent(true);
  while (const std::optional<std::string> message = socket.Receive()) {
    if (!socket.Send(Answer(worker.commands(), *message, limits))) return 1;
  }
  return 0;
}

}  // namespace
}  // namespace retroinfer::test_support

int main() { return retroinfer::test_support::Main(); }
