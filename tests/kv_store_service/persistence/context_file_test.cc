#include "kv_store_service/persistence/context_file.h"

#include <gtest/gtest.h>
#include <stdio.h>
#include <unistd.h>

#include <cstdio>
#include <memory>

#include "common/hash/sha256.h"
#include "common/kv/segment_layout.h"
#include "common/status/error_reason.h"

namespace retroinfer::kvstore {
namespace {

constexpr KvGeometry kGeometry{2, 2, 64, kBf16Kv};

ContextFileHeader MakeHeader(uint64_t num_segments = 2) {
  ContextFileHeader header;
  header.segment_version = 2;
  header.geometry = kGeometry;
  header.num_tokens = 5000;
  header.num_segments = num_segments;
  header.created = absl::FromUnixSeconds(1000);
  header.sink_token_ids = {1, 2, 3, 4};
  header.context_name = "a name";
  return header;
}

std::string MakeFile(const ContextFileHeader& header, int32_t token = 0) {
  std::string file;
  ContextFileWriter writer([&file](std::string_view bytes) {
    file.append(bytes);
    return absl::OkStatus();
  });
  EXPECT_TRUE(writer.Begin(header).ok());
  const std::vector<std::byte> image(4096, std::byte{7});
  for (uint64_t i = 0; i < 2; ++i) {
    const std::vector<int32_t> tokens(1024, token + static_cast<int32_t>(i));
    EXPECT_TRUE(writer.AddSegment(4 + 1024 * i, tokens, image).ok());
  }
  EXPECT_TRUE(writer.Finish().ok());
  return file;
}

std::string MakeFile(uint64_t num_segments = 2) { return MakeFile(MakeHeader(num_segments)); }

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

// Files that were exported before formats had a description of their own can be imported.
TEST_F(ContextFileTest, FilesOfTheFirstFormatsStayAsTheyWere) {
  common::Sha256 digest("file");
  digest.Add(MakeFile());
  EXPECT_EQ(digest.Finish().ToHex(),
            "6bc39d28a798fe991594db9ff0d6ad86d80e6046d3fae0c2aaf683a29e5878b2");
}

TEST_F(ContextFileTest, AFileSaysItsFormat) {
  for (const KvFormat& format : kKvFormats) {
    ContextFileHeader header = MakeHeader();
    header.geometry.format = format;
    const auto parsed = ParseContextFileHeader(MakeFile(header));
    ASSERT_TRUE(parsed.ok() && parsed->has_value()) << parsed.status();
    EXPECT_EQ((*parsed)->geometry, header.geometry);
  }
}

TEST_F(ContextFileTest, AFileSaysItsWindowLayers) {
  ContextFileHeader header = MakeHeader();
  header.geometry = {2, 2, 64, kBf16Kv, 3, 100};
  header.segment_version = SegmentVersionOf(header.geometry);
  const std::string file = MakeFile(header);
  EXPECT_EQ(file.size(), MakeFile().size() + 8);
  const auto reader = Open(file);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->header().geometry, header.geometry);
  EXPECT_EQ(reader->header().context_name, "a name");
  header.geometry = kGeometry;  // a tail of no layers
  EXPECT_EQ(Open(MakeFile(header)).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ContextFileTest, AFormatThatIsNotKnownIsRefusedByItsNumber) {
  ContextFileHeader header = MakeHeader();
  header.geometry.format.id = static_cast<KvFormatId>(99);
  const absl::Status status = ParseContextFileHeader(MakeFile(header)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_EQ(common::ReasonOf(status).reason, kWrongFormatReason);
  EXPECT_NE(status.message().find("KV format 99 is not known"), absl::string_view::npos) << status;
}

// All checksums of these files are right: somebody has written them so.
TEST_F(ContextFileTest, NumbersThatNoContextHasAreRefused) {
  const auto refused = [&](auto change) {
    ContextFileHeader header = MakeHeader();
    change(header);
    const std::string file = MakeFile(header);
    for (const absl::Status& status :
         {ParseContextFileHeader(file).status(), Open(file).status()}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
      EXPECT_EQ(common::ReasonOf(status).reason, kBadFileReason);
    }
  };
  refused([](auto& header) { header.num_tokens = UINT64_MAX; });
  refused([](auto& header) { header.num_tokens = 0; });
  refused([](auto& header) { header.num_tokens = 4 + 2 * 1024 - 1; });
  refused([](auto& header) { header.num_tokens = 4 + 2 * 8192 + 8192 + 1; });
  refused([](auto& header) { header.num_segments = 0; });
  refused([](auto& header) { header.num_segments = 65537; });
  refused([](auto& header) { header.num_segments = UINT64_MAX; });
  refused([](auto& header) { header.sink_token_ids[2] = -1; });
  refused([](auto& header) { header.geometry.num_layers = 0; });
  refused([](auto& header) { header.geometry.head_dim = 1u << 31; });
  for (const char* name : {"\xff", "a\xc3", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80"}) {
    refused([name](auto& header) { header.context_name = name; });
  }
  ContextFileHeader good = MakeHeader();
  good.context_name = "K\u00f6ln \u4f60\u597d \U0001f600";
  EXPECT_TRUE(Open(MakeFile(good)).ok());
}

TEST_F(ContextFileTest, TokensBelowZeroAreRefused) {
  const std::string file = MakeFile(MakeHeader(), -5);
  const auto reader = Open(file);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(common::ReasonOf(reader->ReadTokens(0).status()).reason, kBadFileReason);
}

TEST_F(ContextFileTest, TheTailIsShorterThanASegmentOfAPrompt) {
  ContextFileHeader header = MakeHeader();
  header.num_tokens = 4 + 2 * 1024 + 8192;
  EXPECT_TRUE(Open(MakeFile(header)).ok());
  ++header.num_tokens;  // right for longer segments, of which there are none
  EXPECT_TRUE(ParseContextFileHeader(MakeFile(header)).ok());
  EXPECT_FALSE(Open(MakeFile(header)).ok());
}

TEST_F(ContextFileTest, TheHeaderTellsHowLargeAFileCanBe) {
  for (const uint64_t num_segments : {1u, 2u, 7u}) {
    for (const uint32_t tokens : {1024u, 8192u}) {
      ContextFileHeader header = MakeHeader(num_segments);
      header.num_tokens = kSinkTokens + num_segments * tokens;
      uint64_t most = 0, least = 0;
      for (const uint64_t image :
           {uint64_t{SegmentLayout(kGeometry, tokens).max_pages} * kPageBytes,
            tokens * uint64_t{kGeometry.token_bytes()}}) {
        uint64_t bytes = 0;
        ContextFileWriter writer([&bytes](std::string_view part) {
          bytes += part.size();
          return absl::OkStatus();
        });
        ASSERT_TRUE(writer.Begin(header).ok());
        const std::vector<std::byte> zeros(image);
        for (uint64_t i = 0; i < num_segments; ++i) {
          ASSERT_TRUE(writer.AddSegment(4 + i * tokens, std::vector<int32_t>(tokens), zeros).ok());
        }
        ASSERT_TRUE(writer.Finish().ok());
        (most == 0 ? most : least) = bytes;
      }
      const ContextFileBytes size = SizeOf(header);
      EXPECT_GE(size.most, most);
      EXPECT_LE(size.most, 2 * most);
      EXPECT_LE(size.least, least);
    }
  }
}

TEST_F(ContextFileTest, ReadsBytesThatAreInNoFile) {
  const std::string file = MakeFile();
  const auto reader = ContextFileReader::Open(
      [&file](uint64_t offset, std::span<char> bytes) {
        file.copy(bytes.data(), bytes.size(), offset);
        return absl::OkStatus();
      },
      file.size());
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->segments().size(), 2u);
}

}  // namespace
}  // namespace retroinfer::kvstore
