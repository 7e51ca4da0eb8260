#include "common/process/standard_streams.h"

#include <fcntl.h>
#include <unistd.h>

namespace retroinfer::common {

void OpenStandardStreams() {
  const struct {
    int fd;
    int flags;
  } streams[] = {{STDIN_FILENO, O_WRONLY}, {STDOUT_FILENO, O_RDONLY}, {STDERR_FILENO, O_WRONLY}};
  for (const auto& stream : streams) {
    if (::fcntl(stream.fd, F_GETFD) >= 0) continue;
    // The lowest free number is this one, since those below are open.
    [[maybe_unused]] const int fd = ::open("/dev/null", stream.flags);
  }
}

}  // namespace retroinfer::common
