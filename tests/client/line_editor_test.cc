#include "client/line_editor.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <unistd.h>

#include <atomic>
#include <string>
#include <thread>

#include "absl/time/clock.h"

namespace retroinfer::client {
namespace {

using ::testing::HasSubstr;

// A terminal, and a person who watches what it shows.
class LineEditorTest : public ::testing::Test {
 protected:
  LineEditorTest() {
    ::setenv("TERM", "xterm", 1);
    int terminal = -1;
    EXPECT_EQ(::openpty(&person_, &terminal, nullptr, nullptr, nullptr), 0);
    terminal_ = ::fdopen(terminal, "r+");
    editor_ = LineEditor::Create(terminal_, terminal_, "> ");
    watcher_ = std::thread([this] {
      while (!stop_) {
        pollfd polled{person_, POLLIN, 0};
        char bytes[256];
        if (::poll(&polled, 1, 10) > 0) (void)!::read(person_, bytes, sizeof(bytes));
      }
    });
  }
  ~LineEditorTest() override {
    stop_ = true;
    watcher_.join();
    editor_.reset();
    std::fclose(terminal_);
    ::close(person_);
  }
  void Type(const std::string& keys) {
    EXPECT_EQ(::write(person_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size()));
  }

  int person_ = -1;
  std::FILE* terminal_ = nullptr;
  std::unique_ptr<LineEditor> editor_;
  std::atomic<bool> stop_{false};
  std::thread watcher_;
};

TEST_F(LineEditorTest, EditsAndRemembers) {
  ASSERT_NE(editor_, nullptr);
  std::string line;
  Type("helo\x1b[Dl\n");  // arrow left
  EXPECT_EQ(editor_->ReadLine(&line), LineEditor::Result::kLine);
  EXPECT_EQ(line, "hello");
  Type("\x1b[A world\n");  // arrow up
  EXPECT_EQ(editor_->ReadLine(&line), LineEditor::Result::kLine);
  EXPECT_EQ(line, "hello world");
  Type(
      "gr\xc3\xbc\xc3\x9f\x7f\xc3\x9f"
      "e\n");  // a character of two bytes, taken back once
  EXPECT_EQ(editor_->ReadLine(&line), LineEditor::Result::kLine);
  EXPECT_EQ(line,
            "gr\xc3\xbc\xc3\x9f"
            "e");
}

TEST_F(LineEditorTest, AnInterruptThrowsTheLineAway) {
  std::string line;
  std::thread interrupter([this] {
    Type("unfinished");
    absl::SleepFor(absl::Milliseconds(200));
    editor_->Interrupt();
  });
  EXPECT_EQ(editor_->ReadLine(&line), LineEditor::Result::kInterrupted);
  interrupter.join();
  Type("next\n");
  EXPECT_EQ(editor_->ReadLine(&line), LineEditor::Result::kLine);
  EXPECT_EQ(line, "next");
}

TEST_F(LineEditorTest, TheEndOfTheInputIsTheEnd) {
  std::string line;
  Type("\x04");
  EXPECT_EQ(editor_->ReadLine(&line), LineEditor::Result::kEnd);
}

}  // namespace
}  // namespace retroinfer::client
