#include "kv_store_service/persistence/context_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/hash/crc32c.h"
#include "common/kv/segment_layout.h"
#include "common/status/errno_status.h"
#include "common/status/error_reason.h"
#include "common/status/status_macros.h"
#include "kv_store_service/persistence/segment_storage.h"

namespace retroinfer::kvstore {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "fields are written as they lie in memory");

constexpr std::string_view kMagic = "RTROCTX\n";
constexpr size_t kPreambleBytes = 16;
constexpr size_t kFixedHeaderBytes = 112;  // up to the name
constexpr size_t kSegmentHeadBytes = 20;
constexpr size_t kCrcBytes = 4;
constexpr size_t kDigestBytes = 32;
constexpr size_t kChunkBytes = 1 << 20;
// Behind the last segment of a text: less than one of a prompt.
constexpr uint32_t kMaxTailTokens = kPrefillSegmentTokens;

// Names go into messages that must be UTF-8: one that is not would make whole listings unreadable.
bool IsUtf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t at) { return at < text.size() ? uint8_t(text[at]) : uint8_t{0}; };
    const uint8_t first = byte(i);
    const int more = first < 0x80 ? 0 : first < 0xc2 ? -1 : first < 0xe0 ? 1 : first < 0xf0 ? 2 : 3;
    if (more < 0 || first > 0xf4) return false;
    // Not longer than it need be, no surrogate, nothing above U+10FFFF.
    const uint8_t second_min = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const uint8_t second_max = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    for (int j = 1; j <= more; ++j) {
      const uint8_t next = byte(i + j);
      if (next < (j == 1 ? second_min : 0x80) || next > (j == 1 ? second_max : 0xbf)) return false;
    }
    i += 1 + static_cast<size_t>(more);
  }
  return true;
}

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

template <typename T>
void Put(T value, std::string* out) {
  static_assert(std::is_trivially_copyable_v<T>);
  out->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T Get(std::string_view bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

// What a header has beyond the name.
size_t WindowBytes(uint32_t segment_version) {
  return segment_version == kSegmentVersionWithTail ? 2 * sizeof(uint32_t) : 0;
}

absl::Status Bad(std::string_view what) {
  return common::WithReason(
      absl::InvalidArgumentError(absl::StrCat(std::string(what), ": this is no context file, or ",
                                              "one that was cut or changed; export it again")),
      kBadFileReason);
}

absl::Status ReadAll(int fd, uint64_t offset, std::span<char> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::pread(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return common::ErrnoStatus(errno, "reading a context file");
    if (count == 0) return Bad("it ends too early");
    offset += static_cast<uint64_t>(count);
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

// Of bytes whose checksum is right: somebody may have written them all the same.
absl::Status CheckNumbers(const ContextFileHeader& header) {
  if (const absl::Status wrong = header.geometry.Validate(); !wrong.ok()) {
    return Bad(std::string(wrong.message()));
  }
  if (WindowBytes(header.segment_version) > 0 && !header.geometry.has_window_layers()) {
    return Bad("it says that segments have a tail of no layers");
  }
  if (header.num_segments == 0 || header.num_segments > kMaxContextSegments) {
    return Bad(absl::StrCat("it says that it has ", header.num_segments,
                            " segments, a context has 1 to ", kMaxContextSegments));
  }
  const uint64_t least = kSinkTokens + header.num_segments * kDecodeSegmentTokens;
  const uint64_t most = kSinkTokens + header.num_segments * kPrefillSegmentTokens + kMaxTailTokens;
  if (header.num_tokens < least || header.num_tokens > most) {
    return Bad(absl::StrCat("it says that it has ", header.num_tokens, " tokens, with ",
                            header.num_segments, " segments that is ", least, " to ", most));
  }
  for (const int32_t token : header.sink_token_ids) {
    if (token < 0) return Bad(absl::StrCat("it has ", token, " as a token id"));
  }
  if (IsUtf8(header.context_name)) return absl::OkStatus();
  return Bad("the name in it is not UTF-8");
}

}  // namespace

ContextFileBytes SizeOf(const ContextFileHeader& header) {
  const KvGeometry& geometry = header.geometry;
  const uint64_t fixed = kFixedHeaderBytes + header.context_name.size() +
                         WindowBytes(header.segment_version) + kCrcBytes + kDigestBytes +
                         header.num_segments * (kSegmentHeadBytes + 2 * kCrcBytes);
  const uint64_t in_segments = header.num_tokens - kSinkTokens;  // at most
  const uint64_t tail = std::min(in_segments, uint64_t{kMaxTailTokens});
  const uint64_t least_tokens =
      std::max(header.num_segments * kDecodeSegmentTokens, in_segments - tail);
  // The shortest segments waste most.
  const uint64_t units = in_segments / kDecodeSegmentTokens;
  const uint64_t unit_pages = SegmentLayout(geometry, kDecodeSegmentTokens).max_pages;
  return {fixed + least_tokens * (sizeof(int32_t) + geometry.token_bytes()),
          fixed + units * (kDecodeSegmentTokens * sizeof(int32_t) +
                           unit_pages * geometry.page_bytes())};
}

absl::Status ContextFileWriter::Write(std::string_view bytes) {
  digest_.Add(bytes);
  for (size_t begin = 0; begin < bytes.size(); begin += kChunkBytes) {
    RETURN_IF_ERROR(sink_(bytes.substr(begin, kChunkBytes)));
  }
  return absl::OkStatus();
}

absl::Status ContextFileWriter::Begin(const ContextFileHeader& header) {
  std::string out(kMagic);
  Put(kContextFileVersion, &out);
  const size_t size = kFixedHeaderBytes + header.context_name.size() +
                      WindowBytes(header.segment_version) + kCrcBytes;
  Put(static_cast<uint32_t>(size), &out);
  out.append(header.fingerprint_hash.view());
  Put(header.segment_version, &out);
  Put(header.geometry.num_layers, &out);
  Put(header.geometry.num_kv_heads, &out);
  Put(header.geometry.head_dim, &out);
  Put(static_cast<uint32_t>(header.geometry.format.id), &out);
  Put(header.num_tokens, &out);
  Put(header.num_segments, &out);
  Put(absl::ToUnixMicros(header.created), &out);
  for (const int32_t token : header.sink_token_ids) Put(token, &out);
  Put(static_cast<uint32_t>(header.context_name.size()), &out);
  out.append(header.context_name);
  if (WindowBytes(header.segment_version) > 0) {
    Put(header.geometry.num_window_layers, &out);
    Put(header.geometry.window_tokens, &out);
  }
  Put(common::Crc32c(Bytes(out)), &out);
  return Write(out);
}

absl::Status ContextFileWriter::AddSegment(uint64_t token_begin, std::span<const int32_t> token_ids,
                                           std::span<const std::byte> image) {
  std::string head;
  Put(token_begin, &head);
  Put(static_cast<uint32_t>(token_ids.size()), &head);
  Put(uint64_t{image.size()}, &head);
  head.append(reinterpret_cast<const char*>(token_ids.data()), token_ids.size_bytes());
  Put(common::Crc32c(Bytes(head)), &head);
  RETURN_IF_ERROR(Write(head));
  RETURN_IF_ERROR(Write({reinterpret_cast<const char*>(image.data()), image.size()}));
  std::string tail;
  Put(common::Crc32c(image), &tail);
  return Write(tail);
}

absl::Status ContextFileWriter::Finish() { return sink_(digest_.Finish().view()); }

absl::StatusOr<std::optional<ContextFileHeader>> ParseContextFileHeader(std::string_view bytes) {
  const size_t magic_there = std::min(bytes.size(), kMagic.size());
  if (bytes.substr(0, magic_there) != kMagic.substr(0, magic_there)) return Bad("wrong beginning");
  if (bytes.size() < kPreambleBytes) return std::optional<ContextFileHeader>();
  const auto version = Get<uint32_t>(bytes, 8);
  if (version != kContextFileVersion) {
    return common::WithReason(absl::FailedPreconditionError(absl::StrCat(
                                  "the file has format version ", version,
                                  ", this server reads version ", kContextFileVersion)),
                              kWrongFormatReason);
  }
  const auto size = Get<uint32_t>(bytes, 12);
  if (size < kFixedHeaderBytes + kCrcBytes || size > kContextHeaderBytesMax)
    return Bad("wrong header");
  if (bytes.size() < size) return std::optional<ContextFileHeader>();
  const std::string_view body = bytes.substr(0, size - kCrcBytes);
  if (common::Crc32c(Bytes(body)) != Get<uint32_t>(bytes, body.size())) {
    return Bad("the checksum of the header is wrong");
  }
  ContextFileHeader header;
  header.segment_version = Get<uint32_t>(body, 48);
  const size_t window_bytes = WindowBytes(header.segment_version);
  if (Get<uint32_t>(body, 108) + kFixedHeaderBytes + window_bytes != body.size()) {
    return Bad("wrong name");
  }
  ASSIGN_OR_RETURN(header.fingerprint_hash, common::Hash256::FromBytes(body.substr(16, 32)));
  absl::StatusOr<KvFormat> format = KvFormatOfNumber(Get<uint32_t>(body, 64));
  if (!format.ok()) {
    return common::WithReason(absl::FailedPreconditionError(absl::StrCat(
                                  "the file: ", std::string(format.status().message()))),
                              kWrongFormatReason);
  }
  header.geometry = {Get<uint32_t>(body, 52), Get<uint32_t>(body, 56), Get<uint32_t>(body, 60),
                     *format};
  if (window_bytes > 0) {
    header.geometry.num_window_layers = Get<uint32_t>(body, body.size() - window_bytes);
    header.geometry.window_tokens = Get<uint32_t>(body, body.size() - sizeof(uint32_t));
  }
  header.num_tokens = Get<uint64_t>(body, 68);
  header.num_segments = Get<uint64_t>(body, 76);
  header.created = absl::FromUnixMicros(Get<int64_t>(body, 84));
  for (size_t i = 0; i < kSinkTokens; ++i) {
    header.sink_token_ids.push_back(Get<int32_t>(body, 92 + 4 * i));
  }
  header.context_name =
      std::string(body.substr(kFixedHeaderBytes, body.size() - window_bytes - kFixedHeaderBytes));
  RETURN_IF_ERROR(CheckNumbers(header));
  return std::optional(std::move(header));
}

absl::StatusOr<ContextFileReader> ContextFileReader::Open(int fd) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return common::ErrnoStatus(errno, "looking at a context file");
  return Open([fd](uint64_t offset, std::span<char> bytes) { return ReadAll(fd, offset, bytes); },
              static_cast<uint64_t>(info.st_size));
}

absl::StatusOr<ContextFileReader> ContextFileReader::Open(Source source, uint64_t size) {
  ContextFileReader reader;
  reader.source_ = std::move(source);
  reader.size_ = size;
  RETURN_IF_ERROR(reader.ReadHeader());
  RETURN_IF_ERROR(reader.CheckDigest());
  RETURN_IF_ERROR(reader.FindSegments());
  return reader;
}

absl::Status ContextFileReader::ReadAt(uint64_t offset, void* to, size_t size) const {
  if (offset > size_ || size > size_ - offset) return Bad("it ends too early");
  return source_(offset, {static_cast<char*>(to), size});
}

absl::Status ContextFileReader::ReadHeader() {
  std::string bytes(std::min<uint64_t>(size_, kContextHeaderBytesMax), '\0');
  RETURN_IF_ERROR(ReadAt(0, bytes.data(), bytes.size()));
  ASSIGN_OR_RETURN(std::optional<ContextFileHeader> header, ParseContextFileHeader(bytes));
  if (!header.has_value()) return Bad("it ends too early");
  header_ = *std::move(header);
  header_bytes_ = Get<uint32_t>(bytes, 12);
  return absl::OkStatus();
}

absl::Status ContextFileReader::CheckDigest() const {
  if (size_ < header_bytes_ + kDigestBytes) return Bad("it ends too early");
  common::Sha256 digest("retroinfer context file");
  std::string chunk(kChunkBytes, '\0');
  const uint64_t end = size_ - kDigestBytes;
  for (uint64_t offset = 0; offset < end;) {
    const size_t size = std::min<uint64_t>(kChunkBytes, end - offset);
    RETURN_IF_ERROR(ReadAt(offset, chunk.data(), size));
    digest.Add({chunk.data(), size});
    offset += size;
  }
  char stored[kDigestBytes];
  RETURN_IF_ERROR(ReadAt(end, stored, kDigestBytes));
  if (digest.Finish().view() == std::string_view(stored, kDigestBytes)) return absl::OkStatus();
  return Bad("the digest of the file is wrong");
}

absl::Status ContextFileReader::FindSegments() {
  uint64_t offset = header_bytes_;
  uint64_t position = kSinkTokens;
  const uint64_t end = size_ - kDigestBytes;
  while (offset < end) {
    if (segments_.size() == header_.num_segments) return Bad("it has more segments than it says");
    char head[kSegmentHeadBytes];
    RETURN_IF_ERROR(ReadAt(offset, head, sizeof(head)));
    const std::string_view view(head, sizeof(head));
    const Segment segment = {Get<uint64_t>(view, 0), Get<uint32_t>(view, 8),
                             Get<uint64_t>(view, 12), offset + kSegmentHeadBytes};
    if (segment.num_tokens == 0 || segment.num_tokens % kDecodeSegmentTokens != 0 ||
        segment.num_tokens > kPrefillSegmentTokens || segment.token_begin != position) {
      return Bad("a segment is not where it should be");
    }
    const SegmentLayout layout(header_.geometry, segment.num_tokens);
    const uint64_t token_bytes = uint64_t{segment.num_tokens} * sizeof(int32_t);
    if (segment.image_bytes == 0 || segment.image_bytes % layout.page_bytes != 0 ||
        segment.image_bytes > layout.max_pages * layout.page_bytes) {
      return Bad("a segment has a wrong size");
    }
    offset = segment.offset + token_bytes + kCrcBytes + segment.image_bytes + kCrcBytes;
    position += segment.num_tokens;
    segments_.push_back(segment);
  }
  if (offset == end && segments_.size() == header_.num_segments && position <= header_.num_tokens &&
      header_.num_tokens - position <= kMaxTailTokens) {
    return absl::OkStatus();
  }
  return Bad("the number of segments is wrong");
}

absl::StatusOr<std::vector<int32_t>> ContextFileReader::ReadTokens(size_t index) const {
  const Segment& segment = segments_[index];
  std::string head(kSegmentHeadBytes + segment.num_tokens * sizeof(int32_t) + kCrcBytes, '\0');
  RETURN_IF_ERROR(ReadAt(segment.offset - kSegmentHeadBytes, head.data(), head.size()));
  const std::string_view body = std::string_view(head).substr(0, head.size() - kCrcBytes);
  if (common::Crc32c(Bytes(body)) != Get<uint32_t>(head, body.size())) {
    return Bad("the checksum of a segment's tokens is wrong");
  }
  std::vector<int32_t> tokens(segment.num_tokens);
  std::memcpy(tokens.data(), body.data() + kSegmentHeadBytes, tokens.size() * sizeof(int32_t));
  const auto negative = std::find_if(tokens.begin(), tokens.end(), [](int32_t t) { return t < 0; });
  if (negative != tokens.end()) return Bad(absl::StrCat("it has ", *negative, " as a token id"));
  return tokens;
}

absl::StatusOr<std::vector<std::byte>> ContextFileReader::ReadImage(size_t index) const {
  const Segment& segment = segments_[index];
  const uint64_t offset = segment.offset + segment.num_tokens * sizeof(int32_t) + kCrcBytes;
  std::vector<std::byte> image(segment.image_bytes);
  RETURN_IF_ERROR(ReadAt(offset, image.data(), image.size()));
  char stored[kCrcBytes];
  RETURN_IF_ERROR(ReadAt(offset + image.size(), stored, kCrcBytes));
  if (common::Crc32c(image) == Get<uint32_t>({stored, kCrcBytes}, 0)) return image;
  return Bad("the checksum of a segment's image is wrong");
}

}  // namespace retroinfer::kvstore
