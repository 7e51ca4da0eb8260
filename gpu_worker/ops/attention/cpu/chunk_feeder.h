// Hands tokens, which lie in pages, to the inner loop of decode attention.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "common/kv/kv_geometry.h"
#include "gpu_worker/ops/attention/cpu/attend_chunk.h"
#include "gpu_worker/ops/cpu/addressable.h"

namespace retroinfer::cpu {

// Collects tokens and attends them a chunk at a time, one chunk behind, so that the next chunk is
// known while one is attended. All states attend a chunk while it is in the cache.
class ChunkFeeder {
 public:
  ChunkFeeder(const KvGeometry& geometry, std::span<AttentionState> states)
      : page_(geometry.page()),
        tokens_per_page_(static_cast<int32_t>(page_.tokens)),
        states_(states) {}

  // Adds tokens [first, end) of a page.
  void AddPage(const std::byte* page, int32_t first, int32_t end) {
    const std::byte* values = page + page_.values_offset;
    for (int32_t t = first; t < end; ++t) {
      AttentionChunk& chunk = chunks_[filling_];
      const auto place = static_cast<size_t>(chunk.num_tokens++);
      const size_t offset = static_cast<size_t>(t) * page_.vector_bytes;
      chunk.keys[place] = page + offset;
      chunk.values[place] = values + offset;
      if (chunk.num_tokens == kChunkTokens) Rotate();
    }
  }
  // Adds tokens [first, end) of consecutive pages.
  void AddPages(const std::byte* pages, int32_t first, int32_t end) {
    for (; end > 0; first -= tokens_per_page_, end -= tokens_per_page_, pages += page_.bytes) {
      if (first < tokens_per_page_) {
        AddPage(pages, std::max(first, 0), std::min(end, tokens_per_page_));
      }
    }
  }
  // Attends what is left.
  void Finish() {
    Rotate();
    Rotate();
  }

 private:
  void Rotate() {
    AttentionChunk& ready = chunks_[1 - filling_];
    for (size_t t = 0; t < static_cast<size_t>(ready.num_tokens); ++t) {
      CheckAddressable(ready.keys[t], page_.vector_bytes);
      CheckAddressable(ready.values[t], page_.vector_bytes);
    }
    for (AttentionState& state : states_) AttendChunk(ready, chunks_[filling_], state);
    ready.num_tokens = 0;
    filling_ = 1 - filling_;
  }

  const PageLayout page_;
  const int32_t tokens_per_page_;
  const std::span<AttentionState> states_;
  std::array<AttentionChunk, 2> chunks_;
  size_t filling_ = 0;
};

}  // namespace retroinfer::cpu
