#include "kv_store_service/persistence/context_file.h"

#include <gtest/gtest.h>
#include <stdio.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "common/status/error_reason.h"

namespace retroinfer::kvstore {
namespace {

constexpr KvGeometry kGeometry{2, 2, 64, DType::kBf16};

std::string MakeFile(uint64_t num_segments = 2) {
  std::string file;
  ContextFileWriter writer([&file](std::string_view bytes) {
    file.append(bytes);
    return absl::OkStatus();
  });
  ContextFileHeader header;
  header.segment_version = 2;
  header.geometry = kGeometry;
  header.num_tokens = 5000;
  header.num_segments = num_segments;
  header.created = absl::FromUnixSeconds(1000);
  header.sink_token_ids = {1, 2, 3, 4};
  header.context_name = "a name";
  EXPECT_TRUE(writer.Begin(header).ok());
  const std::vector<std::byte> image(4096, std::byte{7});
  for (uint64_t i = 0; i < 2; ++i) {
    const std::vector<int32_t> tokens(1024, static_cast<int32_t>(i));
    EXPECT_TRUE(writer.AddSegment(4 + 1024 * i, tokens, image).ok());
  }
  EXPECT_TRUE(writer.Finish().ok());
  return file;
}

class ContextFileTest : public testing::Test {
 protected:
  absl::StatusOr<ContextFileReader> Open(const std::string& bytes) {
    file_.reset(std::tmpfile());
    EXPECT_EQ(std::fwrite(bytes.data(), 1, bytes.size(), file_.get()), bytes.size());
    std::fflush(file_.get());
    return ContextFileReader::Open(::fileno(file_.get()));
  }

  struct Closer {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Closer> file_;
};

TEST_F(ContextFileTest, ReadsWhatWasWritten) {
  const auto reader = Open(MakeFile());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->header().context_name, "a name");
  EXPECT_EQ(reader->header().num_tokens, 5000u);
  EXPECT_TRUE(reader->header().geometry == kGeometry);
  EXPECT_EQ(reader->header().created, absl::FromUnixSeconds(1000));
  ASSERT_EQ(reader->segments().size(), 2u);
  EXPECT_EQ(reader->segments()[1].token_begin, 1028u);
  EXPECT_EQ(*reader->ReadTokens(1), std::vector<int32_t>(1024, 1));
  EXPECT_EQ(*reader->ReadImage(1), std::vector<std::byte>(4096, std::byte{7}));
}

TEST_F(ContextFileTest, EveryFlippedByteAndEveryCutIsNoticed) {
  const std::string file = MakeFile();
  for (size_t i = 0; i < file.size(); i += i < 200 ? 1 : 131) {
    std::string changed = file;
    changed[i] ^= 1;
    EXPECT_FALSE(Open(changed).ok()) << i;
    EXPECT_FALSE(Open(file.substr(0, i)).ok()) << i;
  }
  EXPECT_FALSE(Open(file + "x").ok());
}

TEST_F(ContextFileTest, ANumberOfSegmentsThatIsWrongIsNoticed) {
  EXPECT_FALSE(Open(MakeFile(1)).ok());
  EXPECT_FALSE(Open(MakeFile(3)).ok());
}

TEST_F(ContextFileTest, AnotherVersionIsToldApart) {
  std::string file = MakeFile();
  file[8] = 2;
  const absl::Status status = ParseContextFileHeader(file).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(common::ReasonOf(status).reason, kWrongFormatReason);
  EXPECT_FALSE(ParseContextFileHeader(MakeFile().substr(0, 60))->has_value());
}

TEST_F(ContextFileTest, AnErrorOfTheSinkEndsTheFile) {
  ContextFileWriter writer([](std::string_view) { return absl::CancelledError("gone"); });
  ContextFileHeader header;
  header.sink_token_ids = {1, 2, 3, 4};
  EXPECT_EQ(writer.Begin(header).code(), absl::StatusCode::kCancelled);
}

}  // namespace
}  // namespace retroinfer::kvstore
