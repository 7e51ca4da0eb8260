#include "text/constraint/node_writer.h"

#include <algorithm>
#include <utility>

#include "text/constraint/utf8_paths.h"

namespace retroinfer::constraint {

using Kind = Network::Kind;

struct NodeWriter::Path {
  Utf8Path bytes;
  NodeId target;
};

NodeWriter::NodeWriter(size_t nodes_max) : nodes_max_(nodes_max) {
  nodes_.push_back({.kind = Kind::kRead});
  nodes_.push_back({.kind = Kind::kReturn});
}

NodeId NodeWriter::New(const Network::Node& node) {
  if (nodes_.size() >= nodes_max_) {
    full_ = true;
    return kDead;
  }
  nodes_.push_back(node);
  return static_cast<NodeId>(nodes_.size() - 1);
}

NodeId NodeWriter::Read(std::vector<Network::Edge> edges) {
  std::erase_if(edges, [](const Network::Edge& edge) { return edge.target == kDead; });
  if (edges.empty() || full_) return kDead;
  const auto known = reads_.find(edges);
  if (known != reads_.end()) return known->second;
  const NodeId id = New({.kind = Kind::kRead,
                         .begin = static_cast<uint32_t>(edges_.size()),
                         .count = static_cast<uint32_t>(edges.size())});
  if (id == kDead) return kDead;
  edges_.insert(edges_.end(), edges.begin(), edges.end());
  reads_.emplace(std::move(edges), id);
  return id;
}

NodeId NodeWriter::ReadBytes(std::string_view bytes, NodeId next) {
  for (size_t i = bytes.size(); i > 0 && next != kDead; --i) {
    const auto byte = static_cast<uint8_t>(bytes[i - 1]);
    next = Read({{byte, byte, next}});
  }
  return next;
}

NodeId NodeWriter::ReadCharacters(std::vector<CharacterEdge> edges) {
  std::sort(edges.begin(), edges.end(), [](const CharacterEdge& a, const CharacterEdge& b) {
    return a.range.first < b.range.first;
  });
  std::vector<Path> paths;
  for (const CharacterEdge& edge : edges) {
    for (const Utf8Path& path : Utf8PathsOf(edge.range)) paths.push_back({path, edge.target});
  }
  return ReadPaths(paths, 0);
}

NodeId NodeWriter::ReadPaths(std::span<Path> paths, size_t depth) {
  std::vector<Network::Edge> edges;
  for (size_t begin = 0; begin < paths.size();) {
    const ByteRange range = paths[begin].bytes.bytes[depth];
    size_t end = begin + 1;
    if (depth + 1 < paths[begin].bytes.length) {
      while (end < paths.size() && paths[end].bytes.bytes[depth].first == range.first) ++end;
    }
    const NodeId target = depth + 1 == paths[begin].bytes.length
                              ? paths[begin].target
                              : ReadPaths(paths.subspan(begin, end - begin), depth + 1);
    if (!edges.empty() && edges.back().target == target && edges.back().last + 1 == range.first) {
      edges.back().last = range.last;
    } else {
      edges.push_back({range.first, range.last, target});
    }
    begin = end;
  }
  return Read(std::move(edges));
}

NodeId NodeWriter::ReadOneOf(std::vector<std::string_view> texts, NodeId next) {
  std::sort(texts.begin(), texts.end());
  texts.erase(std::unique(texts.begin(), texts.end()), texts.end());
  return ReadSorted(texts, 0, next);
}

// The depth of the recursion is at most the number of texts: what all of them share is read by a
// loop.
NodeId NodeWriter::ReadSorted(std::span<const std::string_view> texts, size_t depth, NodeId next) {
  const std::string_view first = texts.front();
  const std::string_view last = texts.back();
  size_t shared = depth;
  while (shared < first.size() && shared < last.size() && first[shared] == last[shared]) ++shared;
  const std::string_view beginning = first.substr(depth, shared - depth);
  if (texts.size() == 1) return ReadBytes(first.substr(depth), next);
  const bool may_end = first.size() == shared;
  if (may_end) texts = texts.subspan(1);
  std::vector<Network::Edge> edges;
  for (size_t begin = 0; begin < texts.size();) {
    const char byte = texts[begin][shared];
    size_t end = begin + 1;
    while (end < texts.size() && texts[end][shared] == byte) ++end;
    const NodeId target = ReadSorted(texts.subspan(begin, end - begin), shared + 1, next);
    edges.push_back({static_cast<uint8_t>(byte), static_cast<uint8_t>(byte), target});
    begin = end;
  }
  const NodeId branch = Read(std::move(edges));
  return ReadBytes(beginning, may_end ? Split({branch, next}) : branch);
}

NodeId NodeWriter::Split(const std::vector<NodeId>& targets) {
  std::vector<NodeId> live = targets;
  std::sort(live.begin(), live.end());
  live.erase(std::unique(live.begin(), live.end()), live.end());
  std::erase(live, kDead);
  if (live.empty()) return kDead;
  if (live.size() == 1) return live.front();
  const NodeId id = Announce();
  SetTargets(id, live);
  return id;
}

NodeId NodeWriter::Call(size_t rule, NodeId next) {
  if (next == kDead) return kDead;
  return New({.kind = Kind::kCall, .begin = static_cast<uint32_t>(rule), .count = next});
}

NodeId NodeWriter::Announce() { return New({.kind = Kind::kSplit}); }

void NodeWriter::SetTargets(NodeId node, const std::vector<NodeId>& targets) {
  if (node == kDead) return;
  nodes_[node].begin = static_cast<uint32_t>(targets_.size());
  nodes_[node].count = static_cast<uint32_t>(targets.size());
  targets_.insert(targets_.end(), targets.begin(), targets.end());
}

void NodeWriter::Flag(NodeId node, TextSetBits sets) {
  if (node != kDead) nodes_[node].text_sets |= sets;
}

}  // namespace retroinfer::constraint
