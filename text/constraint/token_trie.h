// Tokens by their bytes, in an order in which common beginnings are met once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace retroinfer::constraint {

// Threads: immutable after construction.
class TokenTrie {
 public:
  // In depth-first order: the children of a node follow it.
  struct Node {
    uint32_t behind;        // the first node that is no descendant
    uint32_t tokens_begin;  // its tokens; those of the next node begin where they end
    uint16_t depth;         // bytes of the path, this one included
    uint8_t byte;
  };
  using Entry = std::pair<std::string_view, int32_t>;  // bytes, not empty, and id

  TokenTrie() : TokenTrie(std::vector<Entry>()) {}
  // REQUIRES: no bytes are empty or longer than 65535.
  explicit TokenTrie(std::vector<Entry> tokens);

  size_t num_nodes() const { return nodes_.size() - 1; }
  const Node& node(size_t index) const { return nodes_[index]; }
  // The ids whose bytes are the path to the node.
  std::span<const int32_t> TokensOf(size_t index) const {
    return std::span(tokens_).subspan(nodes_[index].tokens_begin,
                                      nodes_[index + 1].tokens_begin - nodes_[index].tokens_begin);
  }
  // The ids whose bytes begin with the path to the node.
  std::span<const int32_t> TokensBelow(size_t index) const {
    return std::span(tokens_).subspan(
        nodes_[index].tokens_begin,
        nodes_[nodes_[index].behind].tokens_begin - nodes_[index].tokens_begin);
  }
  size_t num_tokens() const { return tokens_.size(); }
  size_t depth_max() const { return depth_max_; }

 private:
  std::vector<Node> nodes_;  // with one behind the last
  std::vector<int32_t> tokens_;
  size_t depth_max_ = 0;
};

}  // namespace retroinfer::constraint
