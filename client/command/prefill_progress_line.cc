#include "client/command/prefill_progress_line.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/command/number_format.h"
#include "common/clock/steady_now.h"

namespace retroinfer::client {
namespace {

constexpr absl::Duration kLineInterval = absl::Seconds(2);
constexpr absl::Duration kUpdateInterval = absl::Milliseconds(200);
constexpr char kClearLine[] = "\r\x1b[K";

// Characters that fit into a line of the terminal. In the last column some terminals wrap already.
size_t LineWidth(std::FILE* terminal) {
  constexpr size_t kUsualColumns = 80;
  winsize size{};
  const int descriptor = ::fileno(terminal);
  const bool is_known =
      descriptor >= 0 && ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return (is_known ? size.ws_col : kUsualColumns) - 1;
}

}  // namespace

std::string DescribeProgress(const generation::v1::PrefillProgress& progress) {
  const int64_t total = std::max<int64_t>(progress.total_tokens(), 1);
  const int64_t computed = progress.processed_tokens() - progress.cached_tokens();
  const double seconds = static_cast<double>(progress.elapsed().seconds()) +
                         1e-9 * static_cast<double>(progress.elapsed().nanos());
  std::string line =
      absl::StrFormat("prefill %d%% (%s of %s tokens", 100 * progress.processed_tokens() / total,
                      WithThousands(progress.processed_tokens()), WithThousands(total));
  if (progress.cached_tokens() > 0) {
    absl::StrAppendFormat(&line, ", %s cached", WithThousands(progress.cached_tokens()));
  }
  absl::StrAppendFormat(&line, ", %.1f s", seconds);
  if (seconds > 0 && computed > 0) {
    absl::StrAppendFormat(
        &line, ", %s tokens/s",
        WithThousands(static_cast<int64_t>(static_cast<double>(computed) / seconds)));
  }
  return line + ")";
}

void PrefillProgressLine::Show(const generation::v1::PrefillProgress& progress) {
  if (out_ == nullptr) return;
  const absl::Time now = common::SteadyNow();
  const bool done = progress.processed_tokens() == progress.total_tokens();
  if (now - last_line_ < (is_terminal_ ? kUpdateInterval : kLineInterval) && !done) return;
  last_line_ = now;
  const std::string line = DescribeProgress(progress);
  if (is_terminal_) {
    // A line that wraps could not be taken back: each update would leave a row behind.
    std::fprintf(out_, "%s%s", kClearLine, line.substr(0, LineWidth(out_)).c_str());
    shown_ = true;
  } else {
    std::fprintf(out_, "%s\n", line.c_str());
  }
  std::fflush(out_);
}

void PrefillProgressLine::Clear() {
  if (!shown_) return;
  std::fputs(kClearLine, out_);
  std::fflush(out_);
  shown_ = false;
}

}  // namespace retroinfer::client
