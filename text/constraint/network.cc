#include "text/constraint/network.h"

#include <bitset>

namespace retroinfer::constraint {

Network::Network(std::vector<Node> nodes, std::vector<Edge> edges, std::vector<NodeId> targets,
                 NodeId start)
    : nodes_(std::move(nodes)),
      edges_(std::move(edges)),
      targets_(std::move(targets)),
      start_(start) {
  // A class ends where an edge begins or has ended.
  std::bitset<257> begins;
  for (const Edge& edge : edges_) {
    begins.set(edge.first);
    begins.set(edge.last + size_t{1});
  }
  uint8_t current = 0;
  for (size_t byte = 0; byte < 256; ++byte) {
    if (byte > 0 && begins.test(byte)) ++current;
    byte_classes_[byte] = current;
  }
  num_classes_ = size_t{current} + 1;
}

size_t Network::memory_bytes() const {
  return nodes_.capacity() * sizeof(Node) + edges_.capacity() * sizeof(Edge) +
         targets_.capacity() * sizeof(NodeId);
}

}  // namespace retroinfer::constraint
