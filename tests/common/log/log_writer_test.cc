#include "common/log/log_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"

namespace retroinfer::common {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kLong = absl::Minutes(2);

struct Pipe {
  Pipe() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(::pipe2(ends, O_CLOEXEC), 0);
    read_end.Reset(ends[0]);
    write_end.Reset(ends[1]);
  }
  // All that is there until the other side closes.
  std::string ReadAll() const {
    std::string text;
    char buffer[4096];
    ssize_t size = 0;
    while ((size = ::read(read_end.get(), buffer, sizeof(buffer))) > 0) {
      text.append(buffer, static_cast<size_t>(size));
    }
    return text;
  }
  UniqueFd read_end;
  UniqueFd write_end;
};

LogWriter::Options Options(size_t queue_bytes = 1 << 20) {
  return {.queue_bytes = queue_bytes,
          .farewell = absl::Milliseconds(50),
          .describe_dropped = [](uint64_t num) { return absl::StrCat(num, " missing\n"); }};
}

TEST(LogWriter, WritesInOrderAndBeforeItGoes) {
  Pipe pipe;
  {
    LogWriter::Options options = Options();
    options.farewell = kLong;
    LogWriter writer(std::move(pipe.write_end), options);
    for (int i = 0; i < 100; ++i) writer.Write(absl::StrCat("line ", i, "\n"));
  }
  std::string expected;
  for (int i = 0; i < 100; ++i) absl::StrAppend(&expected, "line ", i, "\n");
  EXPECT_EQ(pipe.ReadAll(), expected);
}

uint64_t SumOfMissing(const std::string& text) {
  uint64_t sum = 0;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (const std::string& line : lines) {
    uint64_t count = 0;
    if (absl::EndsWith(line, " missing")) {
      EXPECT_TRUE(absl::SimpleAtoi(line.substr(0, line.find(' ')), &count)) << line;
    }
    sum += count;
  }
  return sum;
}

TEST(LogWriter, AReaderThatDoesNotReadHoldsUpNobodyAndTheLossIsTold) {
  Pipe pipe;
  constexpr uint64_t kLines = 20'000;
  const std::string line(99, 'x');
  LogWriter writer(std::move(pipe.write_end), Options(100'000));
  for (uint64_t i = 0; i < kLines; ++i) writer.Write(line + "\n");  // blocks without a queue
  const uint64_t dropped = writer.num_dropped();
  EXPECT_GT(dropped, 0u);
  EXPECT_LT(dropped, kLines);
  EXPECT_FALSE(writer.Flush(absl::Milliseconds(10)));

  std::string text;
  std::thread reader([&] { text = pipe.ReadAll(); });
  EXPECT_TRUE(writer.Flush(kLong));
  writer.Write("the end\n");
  EXPECT_TRUE(writer.Flush(kLong));
  writer.Replace(UniqueFd());  // closes the pipe
  reader.join();
  EXPECT_EQ(SumOfMissing(text), dropped);  // told once or, if the writer came to it early, twice
  EXPECT_THAT(text, HasSubstr("the end\n"));
  EXPECT_EQ(writer.num_dropped(), dropped);
}

TEST(LogWriter, AStuckWriteDoesNotDelayTheEnd) {
  Pipe pipe;
  const absl::Time begin = absl::Now();
  {
    LogWriter writer(std::move(pipe.write_end), Options());
    writer.Write(std::string(500'000, 'x'));
  }
  EXPECT_LT(absl::Now() - begin, absl::Minutes(1));
}

TEST(LogWriter, WhatCannotBeWrittenIsCounted) {
  ::signal(SIGPIPE, SIG_IGN);
  Pipe pipe;
  pipe.read_end.Reset();
  LogWriter writer(std::move(pipe.write_end), Options());
  writer.Write("one\n");
  writer.Write("two\n");
  EXPECT_TRUE(writer.Flush(kLong));
  EXPECT_EQ(writer.num_dropped(), 2u);

  Pipe whole;
  writer.Replace(std::move(whole.write_end));
  writer.Write("three\n");
  writer.Replace(UniqueFd());
  EXPECT_EQ(whole.ReadAll(), "2 missing\nthree\n");
}

TEST(LogWriter, ANonBlockingPipeLosesNothing) {
  Pipe pipe;
  ASSERT_EQ(::fcntl(pipe.write_end.get(), F_SETFL, O_NONBLOCK), 0);
  LogWriter writer(std::move(pipe.write_end), Options());
  const std::string line = std::string(300'000, 'x') + "\n";  // more than a pipe takes
  writer.Write(line);
  writer.Replace(UniqueFd());
  EXPECT_EQ(pipe.ReadAll(), line);
  EXPECT_EQ(writer.num_dropped(), 0u);
}

TEST(LogWriter, ManyThreadsKeepTheirLinesWhole) {
  Pipe pipe;
  LogWriter writer(std::move(pipe.write_end), Options());
  std::string text;
  std::thread reader([&] { text = pipe.ReadAll(); });
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&writer, t] {
      for (int i = 0; i < 200; ++i)
        writer.Write(std::string(50, static_cast<char>('a' + t)) + "\n");
    });
  }
  for (std::thread& thread : threads) thread.join();
  writer.Replace(UniqueFd());
  reader.join();
  EXPECT_EQ(text.size(), 4u * 200 * 51);
  for (size_t at = 0; at < text.size(); at += 51) {
    EXPECT_EQ(text.substr(at, 51), std::string(50, text[at]) + "\n");
  }
}

}  // namespace
}  // namespace retroinfer::common
