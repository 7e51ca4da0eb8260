#include "common/files/named_stream.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"

namespace retroinfer::common {
namespace {

class NamedStreamTest : public testing::Test {
 protected:
  NamedStreamTest() {
    std::filesystem::create_directories(folder_);
    EXPECT_EQ(::mkfifo(fifo_.c_str(), 0600), 0);
  }
  ~NamedStreamTest() override { std::filesystem::remove_all(folder_); }

  static absl::StatusOr<std::string> ReadAll(const std::string& path) {
    auto input = NamedInput::Open(path);
    if (!input.ok()) return input.status();
    return ReadAll(*input);
  }
  static absl::StatusOr<std::string> ReadAll(NamedInput& input) {
    std::string text;
    char buffer[7];
    while (true) {
      const absl::StatusOr<size_t> count = input.Read(buffer, sizeof(buffer));
      if (!count.ok()) return count.status();
      if (*count == 0) return text;
      text.append(buffer, *count);
    }
  }

  const std::string folder_ = absl::StrCat(testing::TempDir(), "named_stream_", ::getpid());
  const std::string fifo_ = folder_ + "/fifo";
  const std::string file_ = folder_ + "/file";
};

TEST_F(NamedStreamTest, AFifoWithoutAnotherEndIsNotWaitedFor) {
  const absl::Status read = ReadAll(fifo_).status();
  EXPECT_EQ(read.code(), absl::StatusCode::kFailedPrecondition) << read;
  EXPECT_NE(read.message().find(fifo_), std::string::npos) << read;
  const absl::Status written = OpenNamedOutput(fifo_, O_WRONLY | O_CREAT, 0600).status();
  EXPECT_EQ(written.code(), absl::StatusCode::kFailedPrecondition) << written;
  EXPECT_NE(written.message().find("nobody reads"), std::string::npos) << written;
}

TEST_F(NamedStreamTest, WhatComesLateThroughAFifoIsWaitedFor) {
  auto input = NamedInput::Open(fifo_);
  ASSERT_TRUE(input.ok()) << input.status();
  auto writer = OpenNamedOutput(fifo_, O_WRONLY, 0600);
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_EQ(::fcntl(writer->get(), F_GETFL) & O_NONBLOCK, 0);
  absl::StatusOr<std::string> text;
  std::thread reading([&] { text = ReadAll(*input); });
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(::write(writer->get(), "0123456789", 10), 10);
    ::usleep(1000);
  }
  writer->Reset(-1);
  reading.join();
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(text->size(), 200u);
}

TEST_F(NamedStreamTest, WaitingForAPipeCanBeGivenUp) {
  auto input = NamedInput::Open(fifo_);
  ASSERT_TRUE(input.ok()) << input.status();
  const auto writer = OpenNamedOutput(fifo_, O_WRONLY, 0600);
  ASSERT_TRUE(writer.ok()) << writer.status();
  char byte = 0;
  int asked = 0;
  EXPECT_EQ(input->Read(&byte, 1, [&asked] { return ++asked == 2; }).status().code(),
            absl::StatusCode::kCancelled);
  EXPECT_EQ(::write(writer->get(), "a", 1), 1);
  EXPECT_EQ(*input->Read(&byte, 1, [] { return true; }), 1u);
}

TEST_F(NamedStreamTest, FilesAndDevices) {
  {
    const auto file = OpenNamedOutput(file_, O_WRONLY | O_CREAT | O_APPEND, 0640);
    ASSERT_TRUE(file.ok()) << file.status();
    EXPECT_EQ(::write(file->get(), "some text", 9), 9);
  }
  EXPECT_EQ(*ReadAll(file_), "some text");
  EXPECT_EQ(*ReadAll("/dev/null"), "");
  EXPECT_FALSE(ReadAll(folder_).ok());
  EXPECT_EQ(ReadAll(folder_ + "/none").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(OpenNamedOutput(folder_, O_WRONLY, 0600).ok());
  EXPECT_EQ(WriteNamedOutput("/dev/full", "text").code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(WriteNamedOutput(file_, "text").ok());
  EXPECT_EQ(*ReadAll(file_), "text");
}

}  // namespace
}  // namespace retroinfer::common
