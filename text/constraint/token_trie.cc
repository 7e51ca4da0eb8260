#include "text/constraint/token_trie.h"

#include <algorithm>

#include "common/log/check.h"

namespace retroinfer::constraint {

TokenTrie::TokenTrie(std::vector<Entry> tokens) {
  std::sort(tokens.begin(), tokens.end());
  std::vector<uint32_t> path;  // the nodes from the root to the last one
  std::string_view last;
  for (const auto& [bytes, id] : tokens) {
    RI_CHECK(!bytes.empty() && bytes.size() <= UINT16_MAX);
    const auto [own, other] = std::mismatch(bytes.begin(), bytes.end(), last.begin(), last.end());
    const auto shared = static_cast<size_t>(own - bytes.begin());
    for (size_t depth = shared; depth < path.size(); ++depth) {
      nodes_[path[depth]].behind = static_cast<uint32_t>(nodes_.size());
    }
    path.resize(shared);
    for (size_t depth = shared; depth < bytes.size(); ++depth) {
      path.push_back(static_cast<uint32_t>(nodes_.size()));
      nodes_.push_back({.behind = 0,
                        .tokens_begin = static_cast<uint32_t>(tokens_.size()),
                        .depth = static_cast<uint16_t>(depth + 1),
                        .byte = static_cast<uint8_t>(bytes[depth])});
    }
    tokens_.push_back(id);
    depth_max_ = std::max(depth_max_, bytes.size());
    last = bytes;
  }
  for (const uint32_t index : path) nodes_[index].behind = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back({.behind = 0, .tokens_begin = static_cast<uint32_t>(tokens_.size())});
}

}  // namespace retroinfer::constraint
