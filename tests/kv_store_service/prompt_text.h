// A text, its names, and the identities of segments and blocks of it, for tests.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "common/hash/segment_name.h"
#include "common/kv/named_segment.h"
#include "common/kv/segment_layout.h"

namespace retroinfer::kvstore {

// Returns the hash of settings, for tests.
inline common::Hash256 MadeBy(std::string_view settings) { return common::SaltHash(settings); }

// Offsets count from the first token behind the sink.
class PromptText {
 public:
  explicit PromptText(std::vector<int32_t> token_ids, std::string_view salt = "")
      : token_ids_(std::move(token_ids)), salt_hash_(common::SaltHash(salt)) {
    const std::vector<int32_t> sink(kSinkTokens, 1);
    texts_.push_back(
        common::NameSegment(common::RootName("model", salt_hash_, kSegmentVersion), sink));
    for (size_t end = kDenseBlockTokens; end <= token_ids_.size(); end += kDenseBlockTokens) {
      texts_.push_back(
          common::NameSegment(texts_.back(), Tokens(end - kDenseBlockTokens, kDenseBlockTokens)));
    }
  }
  // Tokens that depend on their places and on `seed`.
  static PromptText Of(size_t num_tokens, int32_t seed = 1) {
    std::vector<int32_t> token_ids;
    for (size_t i = 0; i < num_tokens; ++i) {
      token_ids.push_back(static_cast<int32_t>(i % 977) * 31 + seed);
    }
    return PromptText(std::move(token_ids));
  }
  // The first tokens of this text, and others behind them.
  PromptText Branch(size_t num_kept, size_t num_tokens, int32_t seed) const {
    std::vector<int32_t> token_ids = Of(num_tokens, seed).token_ids_;
    std::copy_n(token_ids_.begin(), num_kept, token_ids.begin());
    return PromptText(std::move(token_ids));
  }

  size_t size() const { return token_ids_.size(); }
  std::span<const int32_t> Tokens(size_t offset, size_t count) const {
    return std::span(token_ids_).subspan(offset, count);
  }
  const common::Hash256& salt_hash() const { return salt_hash_; }

  common::SegmentName TextAt(size_t offset) const {
    const size_t whole = offset / kDenseBlockTokens;
    if (offset % kDenseBlockTokens == 0) return texts_[whole];
    return common::NameSegment(texts_[whole],
                               Tokens(whole * kDenseBlockTokens, offset % kDenseBlockTokens));
  }
  SegmentIdentity Block(size_t offset, size_t count = kDenseBlockTokens) const {
    return Exact(TextAt(offset), offset, count);
  }
  SegmentIdentity Exact(const common::SegmentName& parent, size_t offset, size_t count) const {
    const auto tokens = Tokens(offset, count);
    return {
        common::NameSegment(parent, tokens), parent, salt_hash_, {tokens.begin(), tokens.end()}};
  }
  // The exact segments of `segment_tokens` each from the first token on.
  std::vector<SegmentIdentity> Segments(size_t count, uint32_t segment_tokens) const {
    std::vector<SegmentIdentity> chain;
    for (size_t i = 0; i < count; ++i) {
      chain.push_back(
          Exact(i == 0 ? texts_[0] : chain.back().name, i * segment_tokens, segment_tokens));
    }
    return chain;
  }
  SegmentIdentity Generated(const common::SegmentName& parent, size_t offset, size_t count,
                            std::string_view made_by = "wave",
                            std::string_view sources = "") const {
    const auto tokens = Tokens(offset, count);
    const common::Provenance provenance{MadeBy(made_by), common::SaltHash(sources),
                                        TextAt(offset + count)};
    return {common::NameGenerated(parent, tokens, provenance),
            parent,
            salt_hash_,
            {tokens.begin(), tokens.end()},
            provenance};
  }
  // What a prompt of `end` tokens behind the sink wants from `offset` on, but its last token.
  RowsWanted Rows(size_t offset, size_t end) const {
    RowsWanted rows{.token_begin = kSinkTokens + offset};
    for (size_t at = offset; at <= end; at += kDenseBlockTokens) rows.texts.push_back(TextAt(at));
    const auto tokens = Tokens(offset, end - 1 - offset);
    rows.token_ids.assign(tokens.begin(), tokens.end());
    return rows;
  }

 private:
  const std::vector<int32_t> token_ids_;
  const common::Hash256 salt_hash_;
  std::vector<common::SegmentName> texts_;  // at multiples of 64
};

}  // namespace retroinfer::kvstore
