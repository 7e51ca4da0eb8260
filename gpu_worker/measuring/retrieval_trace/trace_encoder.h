// The bytes of a retrieval trace: what the retrieval zone of every decode step read.
//
// A trace is a header and records. All numbers are unsigned, in base 128, seven bits a byte, the
// lowest first, the highest bit set in all bytes but the last (as Protobuf's varint).
//
//   header   8 bytes "RITRACE1", then: layers, KV heads, tokens of a page, clusters of a meta block
//   record   its length in bytes behind this number, a letter, and:
//     'S'    a step of one sequence: its id, its tokens with KV, the places of its index (empty
//            clusters included); then of every layer, for every KV head: its clusters, see below
//     'R'    the sequence with this id has ended. Its id does not come again
//     'L'    so many steps are missing here: the disk was too slow
//     'E'    the end, and why: 0 the worker stopped, 1 the file has reached its limit. Without this
//            record the trace was cut off: the disk was full, or the worker was killed
//
// Clusters of a head, by number, against those that the same sequence and head had in its last
// recorded step (in its first: none):
//   * one bit for each of those, the first in the lowest bit of the first byte: it is there again
//   * how many came new, times two, plus one if clusters are left out: then how many are
//   * each new one: its number less the number of the new one before, less one (the first: itself)
//   * the pages of those that this head reads for the first time; 0: not known
//   * how many clusters have missed pages; for each its place among all clusters of this head, less
//     the one before, less one (the first: itself), and how many pages missed
//
// A cluster's tokens and pages never change, and its number stays its own in a sequence.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace retroinfer {

struct RetrievedCluster {
  uint32_t cluster = 0;
  uint32_t num_pages = 0;  // 0: not known
  uint32_t num_missed = 0;
};

struct HeadRetrieval {
  std::vector<RetrievedCluster> clusters;  // by number, each once
  uint32_t num_left_out = 0;
};

struct StepRetrieval {
  uint64_t sequence_id = 0;
  uint64_t num_tokens = 0;
  uint32_t num_clusters = 0;         // places of the index; all numbers are below
  std::vector<HeadRetrieval> heads;  // [layers * kv_heads]
};

class TraceEncoder {
 public:
  struct Shape {
    uint32_t num_layers = 0;
    uint32_t num_kv_heads = 0;
    uint32_t tokens_per_page = 0;
  };
  // How every trace begins.
  static constexpr char kMagic[] = "RITRACE1";
  // Why a trace has ended.
  enum class End : uint8_t { kStopped = 0, kLimit = 1 };

  explicit TraceEncoder(const Shape& shape) : shape_(shape) {}

  std::string Header() const;
  // Return records. REQUIRES: what they return is written; the next step builds on it.
  std::string Step(const StepRetrieval& step);
  std::string Release(uint64_t sequence_id);
  static std::string Lost(uint64_t num_steps);
  static std::string EndOf(End end);

 private:
  struct HeadState {
    std::vector<uint32_t> last;  // clusters of the last step, by number
    std::vector<bool> is_known;  // clusters whose pages have been told
  };

  static void AddHead(const HeadRetrieval& head, uint32_t num_clusters, HeadState& state,
                      std::string& out);

  const Shape shape_;
  absl::flat_hash_map<uint64_t, std::vector<HeadState>> sequences_;  // by id; [layers * kv_heads]
};

}  // namespace retroinfer
