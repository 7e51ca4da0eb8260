#include "gpu_worker/measuring/retrieval_trace/trace_file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace retroinfer {
namespace {

class TraceFileTest : public ::testing::Test {
 protected:
  TraceFileTest()
      : folder_(std::filesystem::temp_directory_path() /
                ("retroinfer_trace_file_" + std::to_string(::getpid()))),
        path_(folder_ / "trace") {
    std::filesystem::create_directories(folder_);
  }
  ~TraceFileTest() override { std::filesystem::remove_all(folder_); }

  auto Open(const std::string& path) { return TraceFile::Open(path, "MAGIC", 1000); }
  std::string Content() {
    std::stringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

  const std::filesystem::path folder_;
  const std::string path_;
};

TEST_F(TraceFileTest, WhatWasAppendedIsThereInOrder) {
  {
    auto file = Open(path_);
    ASSERT_TRUE(file.ok()) << file.status();
    for (int i = 0; i < 100; ++i) (*file)->Append(std::to_string(i) + " ");
    EXPECT_EQ((*file)->size_bytes(), 290u);
    (*file)->End("end", "a test");
    EXPECT_FALSE((*file)->is_open());
    (*file)->Append("more");
    (*file)->End("again", "a test");
  }
  EXPECT_EQ(Content().substr(0, 8), "0 1 2 3 ");
  EXPECT_EQ(Content().substr(284), "98 99 end");
}

TEST_F(TraceFileTest, TakesThePlaceOfATraceAndOfNothingElse) {
  for (const char* before : {"", "MAGIC and what follows"}) {
    std::ofstream(path_) << before;
    auto file = Open(path_);
    ASSERT_TRUE(file.ok()) << file.status();
    (*file)->Append("x");
    file->reset();
    EXPECT_EQ(Content(), "x");
  }
  for (const char* before : {"M", "my thesis"}) {
    std::ofstream(path_) << before;
    EXPECT_EQ(Open(path_).status().code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(Content(), before);
  }
  std::filesystem::remove(path_);
  std::filesystem::create_symlink("nowhere", path_);
  EXPECT_EQ(Open(path_).status().code(), absl::StatusCode::kFailedPrecondition);
  std::filesystem::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(Open(path_).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(Open("/dev/null").ok());
  EXPECT_FALSE(Open(folder_.string()).ok());
  EXPECT_EQ(Open((folder_ / "no" / "trace").string()).status().code(), absl::StatusCode::kNotFound);
}

// A limit on the size of files stands for a full disk.
TEST_F(TraceFileTest, AFullDiskEndsTheRecordingAndNobodyWaits) {
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small { 10'000, before.rlim_max };
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  {
    auto file = Open(path_);
    ASSERT_TRUE(file.ok()) << file.status();
    while ((*file)->is_open()) {
      if ((*file)->has_room()) (*file)->Append(std::string(1000, 'x'));
    }
    EXPECT_TRUE((*file)->has_room());
    (*file)->Append("lost");
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(Content(), std::string(10'000, 'x'));
}

}  // namespace
}  // namespace retroinfer
