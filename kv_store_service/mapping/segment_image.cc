#include "kv_store_service/mapping/segment_image.h"

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/kv/block_layout.h"
#include "common/kv/named_segment.h"
#include "common/kv/segment_layout.h"
#include "common/status/status_macros.h"
#include "kv_store_service/mapping/cluster_map.h"

namespace retroinfer::kvstore {
namespace {

absl::Status RequireEqual(const char* field, uint64_t value, uint64_t expected,
                          const char* what = "segment") {
  if (value == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " image: ", field, " is ", value, ", needs ", expected));
}

absl::Status CheckFormat(uint32_t format, const KvGeometry& geometry, const char* what) {
  if (format == static_cast<uint32_t>(geometry.format.id)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(what, " image: KV format is ", KvFormatText(format), ", needs ",
                   KvFormatText(static_cast<uint32_t>(geometry.format.id))));
}

// A block has no index, and any bytes are pages: its header is all there is to check.
absl::StatusOr<SegmentImage> ReadBlockImage(std::span<const std::byte> extent,
                                            const KvGeometry& geometry, uint64_t token_begin,
                                            uint32_t token_count) {
  const uint32_t num_pages = BlockLayout(geometry).num_pages;
  const uint64_t extent_pages = extent.size() / geometry.page_bytes();
  if (extent_pages < num_pages) {
    return absl::InvalidArgumentError(absl::StrCat("block image: the extent has ", extent_pages,
                                                   " pages, a block needs ", num_pages));
  }
  BlockHeader header;
  std::memcpy(&header, extent.data(), sizeof(header));
  const auto require = [](const char* field, uint64_t value, uint64_t expected) {
    return RequireEqual(field, value, expected, "block");
  };
  RETURN_IF_ERROR(require("magic", header.magic, kBlockMagic));
  RETURN_IF_ERROR(require("version", header.version, kBlockVersion));
  RETURN_IF_ERROR(require("num_layers", header.num_layers, geometry.num_layers));
  RETURN_IF_ERROR(require("num_kv_heads", header.num_kv_heads, geometry.num_kv_heads));
  RETURN_IF_ERROR(require("head_dim", header.head_dim, geometry.head_dim));
  RETURN_IF_ERROR(CheckFormat(header.format, geometry, "block"));
  RETURN_IF_ERROR(require("num_tokens", header.num_tokens, token_count));
  RETURN_IF_ERROR(require("token_begin", header.token_begin, token_begin));
  return SegmentImage{num_pages};
}

absl::Status CheckHeader(const SegmentHeader& header, const KvGeometry& geometry,
                         const SegmentLayout& layout, uint64_t token_begin, uint32_t token_count,
                         uint64_t extent_pages) {
  RETURN_IF_ERROR(RequireEqual("magic", header.magic, kSegmentMagic));
  RETURN_IF_ERROR(RequireEqual("version", header.version, SegmentVersionOf(geometry)));
  RETURN_IF_ERROR(RequireEqual("num_layers", header.num_layers, geometry.num_layers));
  RETURN_IF_ERROR(RequireEqual("num_kv_heads", header.num_kv_heads, geometry.num_kv_heads));
  RETURN_IF_ERROR(RequireEqual("head_dim", header.head_dim, geometry.head_dim));
  RETURN_IF_ERROR(CheckFormat(header.format, geometry, "segment"));
  RETURN_IF_ERROR(RequireEqual("num_tokens", header.num_tokens, token_count));
  RETURN_IF_ERROR(RequireEqual("token_begin", header.token_begin, token_begin));
  RETURN_IF_ERROR(
      RequireEqual("num_window_layers", header.num_window_layers, geometry.num_window_layers));
  RETURN_IF_ERROR(RequireEqual("window_tokens", header.window_tokens, geometry.window_tokens));
  RETURN_IF_ERROR(RequireEqual("num_clusters", header.num_clusters, layout.num_clusters));
  if (header.used_pages < layout.first_kv_page || header.used_pages > extent_pages) {
    return absl::InvalidArgumentError(absl::StrCat(
        "segment image: used_pages is ", header.used_pages, ", needs ", layout.first_kv_page,
        " (end of the index) to ", extent_pages, " (pages of the extent)"));
  }
  return absl::OkStatus();
}

// Checks that the order table of one (layer, head), little-endian, is a permutation.
absl::Status CheckOrder(std::span<const std::byte> order, uint32_t token_count,
                        std::vector<bool>* seen) {
  seen->assign(token_count, false);
  for (uint32_t i = 0; i < token_count; ++i) {
    TokenOrder index;
    std::memcpy(&index, order.data() + size_t{i} * sizeof(index), sizeof(index));
    if (index >= token_count || (*seen)[index]) {
      return absl::InvalidArgumentError(
          absl::StrCat("segment image: place ", i, " of the order table has token ", index,
                       index >= token_count ? ", which the segment does not have"
                                            : ", which another place has too"));
    }
    (*seen)[index] = true;
  }
  return absl::OkStatus();
}

}  // namespace

uint32_t MaxImagePages(const KvGeometry& geometry, uint32_t num_tokens) {
  if (IsBlock(num_tokens)) return BlockLayout(geometry).num_pages;
  return SegmentLayout(geometry, num_tokens).max_pages;
}

absl::StatusOr<SegmentImage> ReadSegmentImage(std::span<const std::byte> extent,
                                              const KvGeometry& geometry, uint64_t token_begin,
                                              uint32_t token_count) {
  if (IsBlock(token_count)) return ReadBlockImage(extent, geometry, token_begin, token_count);
  const SegmentLayout layout(geometry, token_count);
  const uint64_t extent_pages = extent.size() / layout.page_bytes;
  if (extent_pages < layout.first_kv_page) {
    return absl::InvalidArgumentError(absl::StrCat("segment image: the extent has ", extent_pages,
                                                   " pages, the index alone needs ",
                                                   layout.first_kv_page));
  }
  SegmentHeader header;
  std::memcpy(&header, extent.data(), sizeof(header));
  RETURN_IF_ERROR(CheckHeader(header, geometry, layout, token_begin, token_count, extent_pages));

  const ClusterMap map(extent.first(size_t{header.used_pages} * layout.page_bytes),
                       /*first_page=*/0, geometry, token_count);
  const size_t num_heads = size_t{geometry.num_layers} * geometry.num_kv_heads;
  std::vector<bool> taken(header.used_pages);
  std::vector<bool> seen;
  for (size_t head = 0; head < num_heads; ++head) {
    absl::Status status = map.Find(head, &taken).status();
    if (status.ok()) {
      const size_t row_bytes = token_count * sizeof(TokenOrder);
      status = CheckOrder(extent.subspan(layout.order_offset + head * row_bytes, row_bytes),
                          token_count, &seen);
    }
    if (!status.ok()) {
      return absl::InvalidArgumentError(absl::StrCat(std::string(status.message()), " (layer ",
                                                     head / geometry.num_kv_heads, ", head ",
                                                     head % geometry.num_kv_heads, ")"));
    }
  }
  return SegmentImage{header.used_pages};
}

}  // namespace retroinfer::kvstore
