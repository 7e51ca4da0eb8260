#include "client/bench/load_progress_line.h"

#include <string>

#include "absl/strings/str_format.h"
#include "client/command/number_format.h"

namespace retroinfer::client {
namespace {

constexpr absl::Duration kUpdateInterval = absl::Milliseconds(200);
constexpr absl::Duration kLineInterval = absl::Seconds(10);
constexpr char kClearLine[] = "\r\x1b[K";

}  // namespace

LoadProgressLine::~LoadProgressLine() {
  if (is_terminal_ && last_done_ >= 0) std::fputc('\n', out_);
}

void LoadProgressLine::Show(int64_t done, absl::Time now) {
  const bool is_last = is_terminal_ && done == total_ && last_done_ != done;
  if (now - last_line_ < (is_terminal_ ? kUpdateInterval : kLineInterval) && !is_last) return;
  last_line_ = now;
  last_done_ = done;
  const std::string line =
      absl::StrFormat("%s of %s requests after %.0f s", WithThousands(done), WithThousands(total_),
                      absl::ToDoubleSeconds(now - begin_));
  std::fprintf(out_, is_terminal_ ? "%s%s" : "%s%s\n", is_terminal_ ? kClearLine : "",
               line.c_str());
  std::fflush(out_);
}

}  // namespace retroinfer::client
