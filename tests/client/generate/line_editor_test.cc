#include "client/generate/line_editor.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <termios.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace retroinfer::client {
namespace {

// A terminal, and a person who watches what it shows.
class LineEditorTest : public ::testing::Test {
 protected:
  void SetUp() override {
    ::setenv("TERM", "xterm", 1);
    int terminal = -1;
    if (::openpty(&person_, &terminal, nullptr, nullptr, nullptr) != 0) {
      GTEST_SKIP() << "no terminal can be made here (is /dev/pts mounted?): "
                   << std::strerror(errno);
    }
    terminal_ = ::fdopen(terminal, "r+");
    editor_ = LineEditor::Create(terminal_, terminal_, "> ");
    watcher_ = std::thread([this] {
      while (!stop_) {
        pollfd polled{person_, POLLIN, 0};
        char bytes[256];
        if (::poll(&polled, 1, 10) <= 0) continue;
        const ssize_t size = ::read(person_, bytes, sizeof(bytes));
        absl::MutexLock lock(&mutex_);
        shown_.append(bytes, size > 0 ? static_cast<size_t>(size) : 0);
      }
    });
  }
  void TearDown() override {
    if (terminal_ == nullptr) return;
    stop_ = true;
    watcher_.join();
    editor_.reset();
    std::fclose(terminal_);
    ::close(person_);
  }
  // Reads a line while somebody types `keys` as soon as the prompt is there: before, the terminal
  // itself would edit them.
  LineEditor::Result Read(const std::string& keys, std::string* line,
                          const std::function<void()>& then = nullptr) {
    {
      absl::MutexLock lock(&mutex_);
      shown_.clear();
    }
    std::thread typist([&] {
      AwaitShown("> ");
      AwaitRawMode();
      EXPECT_EQ(::write(person_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
      if (then) then();
    });
    const LineEditor::Result result = editor_->ReadLine(line);
    typist.join();
    return result;
  }
  // The editor shows its prompt, and then takes the editing of lines from the terminal.
  void AwaitRawMode() const {
    termios settings{};
    for (int i = 0; i < 120'000; ++i) {
      if (::tcgetattr(person_, &settings) == 0 && (settings.c_lflag & ICANON) == 0) return;
      absl::SleepFor(absl::Milliseconds(1));
    }
    ADD_FAILURE() << "the terminal still edits lines";
  }
  void AwaitShown(const std::string& text) {
    const auto shown = [&] { return shown_.find(text) != std::string::npos; };
    absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&shown), absl::Minutes(2))) << text;
  }

  int person_ = -1;
  std::FILE* terminal_ = nullptr;
  std::unique_ptr<LineEditor> editor_;
  std::atomic<bool> stop_{false};
  absl::Mutex mutex_;
  std::string shown_;  // what the terminal showed
  std::thread watcher_;
};

TEST_F(LineEditorTest, EditsAndRemembers) {
  ASSERT_NE(editor_, nullptr);
  std::string line;
  EXPECT_EQ(Read("helo\x1b[Dl\n", &line), LineEditor::Result::kLine);  // arrow left
  EXPECT_EQ(line, "hello");
  EXPECT_EQ(Read("\x1b[A world\n", &line), LineEditor::Result::kLine);  // arrow up
  EXPECT_EQ(line, "hello world");
  // A character of two bytes that is taken back at once, and one of which half is missing.
  EXPECT_EQ(Read("gr\xc3\xbc\xc3\x9f\x7f\xc3\xc3\x9f"
                 "e\n",
                 &line),
            LineEditor::Result::kLine);
  EXPECT_EQ(line,
            "gr\xc3\xbc\xc3\x9f"
            "e");
}

TEST_F(LineEditorTest, AnInterruptThrowsTheLineAway) {
  ASSERT_NE(editor_, nullptr);
  std::string line;
  const auto interrupt = [this] {
    AwaitShown("unfinished");
    editor_->Interrupt();
  };
  EXPECT_EQ(Read("unfinished", &line, interrupt), LineEditor::Result::kInterrupted);
  EXPECT_EQ(Read("next\n", &line), LineEditor::Result::kLine);
  EXPECT_EQ(line, "next");
}

TEST_F(LineEditorTest, TheEndOfTheInputIsTheEnd) {
  ASSERT_NE(editor_, nullptr);
  std::string line;
  EXPECT_EQ(Read("\x04", &line), LineEditor::Result::kEnd);
}

}  // namespace
}  // namespace retroinfer::client
