// What the store reads from its folders, its socket of descriptors and an import. The first byte
// says which of them the rest is.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/hash/crc32c.h"
#include "common/hash/sha256.h"
#include "common/kv/segment_layout.h"
#include "common/shm/fd_channel.h"
#include "kv_store_service/lease/state_file.h"
#include "kv_store_service/persistence/context_file.h"
#include "kv_store_service/persistence/row_witness.h"
#include "kv_store_service/persistence/storage_folder.h"
#include "tests/kv_store_service/segment_writer.h"

namespace {

using namespace retroinfer;           // NOLINT: one file
using namespace retroinfer::kvstore;  // NOLINT

void Require(bool condition) {
  if (!condition) std::abort();
}

void ReadContextFile(std::string_view bytes) {
  const auto header = ParseContextFileHeader(bytes);
  if (header.ok() && header->has_value()) {
    const ContextFileBytes size = SizeOf(**header);
    Require(size.least <= size.most);
  }
  const auto read = [bytes](uint64_t offset, std::span<char> to) {
    if (offset > bytes.size() || to.size() > bytes.size() - offset) {
      return absl::OutOfRangeError("behind the end");
    }
    std::copy_n(bytes.data() + offset, to.size(), to.data());
    return absl::OkStatus();
  };
  const auto reader = ContextFileReader::Open(read, bytes.size());
  if (!reader.ok()) return;
  for (size_t i = 0; i < reader->segments().size(); ++i) {
    const auto tokens = reader->ReadTokens(i);
    if (tokens.ok()) Require(tokens->size() == reader->segments()[i].num_tokens);
    (void)reader->ReadImage(i);
  }
}

std::string RightContextFile() {
  const SegmentLayout layout(kTinyGeometry, kDecodeSegmentTokens);
  std::vector<std::byte> image(layout.max_pages * kPageBytes);
  image.resize(WriteSegment(image, kTinyGeometry, kSinkTokens, kDecodeSegmentTokens) * kPageBytes);
  ContextFileHeader header;
  header.segment_version = kSegmentVersion;
  header.geometry = kTinyGeometry;
  header.num_tokens = kSinkTokens + kDecodeSegmentTokens;
  header.num_segments = 1;
  header.sink_token_ids.assign(kSinkTokens, 7);
  header.context_name = "name";
  std::string file;
  ContextFileWriter writer([&file](std::string_view bytes) {
    file += bytes;
    return absl::OkStatus();
  });
  Require(writer.Begin(header).ok());
  const std::vector<int32_t> tokens(kDecodeSegmentTokens, 7);
  Require(writer.AddSegment(kSinkTokens, tokens, image).ok() && writer.Finish().ok());
  return file;
}

template <typename T>
void Replace(size_t offset, const T& value, std::string* file) {
  if (offset <= file->size() && file->size() - offset >= sizeof(value)) {
    std::memcpy(file->data() + offset, &value, sizeof(value));
  }
}

uint32_t Checksum(std::string_view bytes) {
  return common::Crc32c(std::as_bytes(std::span(bytes.data(), bytes.size())));
}

// A file that somebody has made on purpose: `changes` are groups of an offset (2 bytes) and what
// stands there (4), and all checksums are right.
void ReadSignedContextFile(std::string_view changes) {
  static const std::string kRight = RightContextFile();
  constexpr size_t kChange = 6;
  constexpr size_t kHeads = 256;  // changes are of the header and of the segment's
  std::string file = kRight;
  for (; changes.size() >= kChange; changes.remove_prefix(kChange)) {
    uint16_t offset = 0;
    uint32_t value = 0;
    std::memcpy(&offset, changes.data(), sizeof(offset));
    std::memcpy(&value, changes.data() + sizeof(offset), sizeof(value));
    Replace(offset % kHeads, value, &file);
  }
  uint32_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data() + 12, sizeof(header_bytes));
  if (header_bytes >= 4 && header_bytes < kHeads) {
    const std::string_view all = file;
    Replace(header_bytes - 4, Checksum(all.substr(0, header_bytes - 4)), &file);
    const size_t head_bytes = 20 + 4 * kDecodeSegmentTokens;
    Replace(header_bytes + head_bytes, Checksum(all.substr(header_bytes, head_bytes)), &file);
  }
  common::Sha256 digest("retroinfer context file");
  const size_t signed_bytes = file.size() - sizeof(common::Hash256);
  digest.Add(std::string_view(file).substr(0, signed_bytes));
  Replace(signed_bytes, digest.Finish(), &file);
  ReadContextFile(file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 6) {
    case 0:
      ReadContextFile(rest);
      break;
    case 1: {
      const auto message = common::ParseFdPacket(std::span(rest.data(), rest.size()));
      if (message.ok()) Require(message->payload.size() <= common::FdChannel::kPayloadBytesMax);
      break;
    }
    case 2:
      (void)ParseStateNote(std::string(rest));
      break;
    case 3:
      (void)ParseFormatVersion(std::string(rest));
      break;
    case 5:
      ReadSignedContextFile(rest);
      break;
    case 4:
      (void)ParseRowCounts(std::as_bytes(std::span(rest.data(), rest.size())));
      break;
  }
  return 0;
}
