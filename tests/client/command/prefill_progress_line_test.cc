#include "client/command/prefill_progress_line.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/command/number_format.h"

namespace retroinfer::client {
namespace {

generation::v1::PrefillProgress Progress(int64_t processed, int64_t total, int64_t cached = 0) {
  generation::v1::PrefillProgress progress;
  progress.set_processed_tokens(processed);
  progress.set_total_tokens(total);
  progress.set_cached_tokens(cached);
  progress.mutable_elapsed()->set_seconds(2);
  return progress;
}

std::string Written(const std::function<void(std::FILE*)>& write) {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* const stream = ::open_memstream(&text, &size);
  write(stream);
  std::fclose(stream);
  std::string result(text, size);
  std::free(text);
  return result;
}

TEST(WithThousands, GroupsDigits) {
  EXPECT_EQ(WithThousands(0), "0");
  EXPECT_EQ(WithThousands(999), "999");
  EXPECT_EQ(WithThousands(1000), "1,000");
  EXPECT_EQ(WithThousands(1234567), "1,234,567");
  EXPECT_EQ(WithThousands(-100), "-100");
  EXPECT_EQ(WithThousands(-1000), "-1,000");
}

TEST(PrefillProgressLine, DescribesProgress) {
  EXPECT_EQ(DescribeProgress(Progress(8192, 16384)),
            "prefill 50% (8,192 of 16,384 tokens, 2.0 s, 4,096 tokens/s)");
  EXPECT_EQ(DescribeProgress(Progress(9000, 10000, 8000)),
            "prefill 90% (9,000 of 10,000 tokens, 8,000 cached, 2.0 s, 500 tokens/s)");
}

TEST(PrefillProgressLine, RewritesALineOfATerminal) {
  const std::string text = Written([](std::FILE* stream) {
    PrefillProgressLine line(stream, true);
    line.Show(Progress(1, 4));
    line.Show(Progress(4, 4));
    line.Clear();
    line.Clear();
  });
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_EQ(text.substr(text.size() - 4), "\r\x1b[K");
  EXPECT_NE(text.find("prefill 100%"), std::string::npos);
}

TEST(PrefillProgressLine, UpdatesATerminalAFewTimesASecond) {
  const std::string text = Written([](std::FILE* stream) {
    PrefillProgressLine line(stream, true);
    const absl::Time begin = absl::Now();
    for (int i = 0; absl::Now() - begin < absl::Milliseconds(500); ++i) {
      line.Show(Progress(i, 1 << 30));
    }
  });
  size_t updates = 0;
  for (size_t at = text.find("prefill"); at != std::string::npos;
       at = text.find("prefill", at + 1)) {
    ++updates;
  }
  EXPECT_GE(updates, 1u);
  EXPECT_LE(updates, 4u);  // more only if the machine stood still
}

TEST(PrefillProgressLine, NeverWrapsInANarrowTerminal) {
  winsize size{.ws_row = 24, .ws_col = 40, .ws_xpixel = 0, .ws_ypixel = 0};
  int controller = -1, terminal = -1;
  ASSERT_EQ(::openpty(&controller, &terminal, nullptr, nullptr, &size), 0);
  std::FILE* const out = ::fdopen(terminal, "w");
  {
    PrefillProgressLine line(out, true);
    line.Show(Progress(1 << 20, 1 << 20, 1024));
    char text[400] = {};
    const ssize_t count = ::read(controller, text, sizeof(text) - 1);
    ASSERT_GT(count, 4);
    const std::string shown = std::string(text, static_cast<size_t>(count)).substr(4);
    EXPECT_EQ(shown, DescribeProgress(Progress(1 << 20, 1 << 20, 1024)).substr(0, 39));
  }
  std::fclose(out);
  ::close(controller);
}

TEST(PrefillProgressLine, WritesFewLinesElsewhere) {
  const std::string text = Written([](std::FILE* stream) {
    PrefillProgressLine line(stream, false);
    for (int i = 1; i <= 100; ++i) line.Show(Progress(i, 100));
    line.Clear();
  });
  EXPECT_EQ(text, DescribeProgress(Progress(1, 100)) + "\n" + DescribeProgress(Progress(100, 100)) +
                      "\n");
}

TEST(PrefillProgressLine, CanBeSilent) {
  PrefillProgressLine line(nullptr, true);
  line.Show(Progress(1, 2));
  line.Clear();
}

}  // namespace
}  // namespace retroinfer::client
