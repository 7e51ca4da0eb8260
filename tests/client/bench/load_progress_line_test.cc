#include "client/bench/load_progress_line.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

namespace retroinfer::client {
namespace {

constexpr absl::Time kBegin = absl::UnixEpoch();

std::string Shown(bool is_terminal, const std::function<void(LoadProgressLine&)>& use) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* const out = ::open_memstream(&text, &size);
  {
    LoadProgressLine line(out, is_terminal, 1200, kBegin);
    use(line);
  }
  std::fclose(out);
  const std::string shown(text, size);
  std::free(text);
  return shown;
}

TEST(LoadProgressLine, RewritesALineOnATerminalFiveTimesASecond) {
  const std::string shown = Shown(true, [](LoadProgressLine& line) {
    line.Show(0, kBegin);
    line.Show(7, kBegin + absl::Milliseconds(199));  // too soon
    line.Show(8, kBegin + absl::Milliseconds(200));
    line.Show(1200, kBegin + absl::Milliseconds(201));  // the last one always
    line.Show(1200, kBegin + absl::Milliseconds(202));
  });
  EXPECT_EQ(shown,
            "\r\x1b[K0 of 1,200 requests after 0 s\r\x1b[K8 of 1,200 requests after 0 s"
            "\r\x1b[K1,200 of 1,200 requests after 0 s\n");
}

TEST(LoadProgressLine, WritesALineEveryTenSecondsElsewhere) {
  const std::string shown = Shown(false, [](LoadProgressLine& line) {
    line.Show(0, kBegin);
    line.Show(3, kBegin + absl::Seconds(9.9));
    line.Show(4, kBegin + absl::Seconds(10));
    line.Show(5, kBegin + absl::Seconds(19));
    line.Show(5, kBegin + absl::Seconds(21));
    line.Show(1200, kBegin + absl::Seconds(22));
  });
  EXPECT_EQ(shown, "4 of 1,200 requests after 10 s\n5 of 1,200 requests after 21 s\n");
}

TEST(LoadProgressLine, SaysNothingOfATestThatIsShort) {
  EXPECT_EQ(Shown(false, [](LoadProgressLine& line) { line.Show(1200, kBegin); }), "");
  EXPECT_EQ(Shown(true, [](LoadProgressLine&) {}), "");
}

}  // namespace
}  // namespace retroinfer::client
