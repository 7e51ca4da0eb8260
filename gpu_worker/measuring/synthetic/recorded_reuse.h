// How soon decode steps ask for the same clusters again: statistics of recorded traces
// (--record-trace), by layer and KV head. `python3 -m tools.lab.reuse` makes the table from the
// traces in docs/evaluation/traces.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace retroinfer {

// Upper ends of ranges of depth: the share of a KV head's clusters that were read later than
// one. The first range is not among them: what the step before has read.
inline constexpr std::array<float, 18> kDepthEnds = {0.02f, 0.025f, 0.03f,  0.04f, 0.05f, 0.06f,
                                                     0.08f, 0.1f,   0.125f, 0.16f, 0.2f,  0.25f,
                                                     0.32f, 0.4f,   0.5f,   0.63f, 0.8f,  1.0f};
// Ends of phases of a context's decode steps, for what has never been read before; the last phase
// does not end.
inline constexpr std::array<int64_t, 10> kPhaseEnds = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};

// The models whose decode steps were recorded: of source code, and of questions about a document.
enum class RecordedModel : uint8_t { kCode, kNeedle };

struct HeadReuse {
  // Of clusters that have been read before, the share that the last step has read, and of each
  // range behind that, in ten-thousandths.
  std::array<uint16_t, kDepthEnds.size() + 1> at_depth;
};

struct RecordedReuse {
  const char* trace;
  int64_t tokens;  // of the context
  uint32_t num_layers;
  uint32_t num_kv_heads;
  // Of what is read, the share that has never been read before, by phase, in ten-thousandths.
  std::array<uint16_t, kPhaseEnds.size() + 1> first;
  float ever_read;  // share of the clusters
  // Pages of the clusters that are read, over the mean of all clusters.
  float pages;
  // Of pages read in the second half of its steps, the share that an LRU cache for 5, 10, 20 and
  // 40 % of all pages has.
  std::array<float, 4> lru_hits;
  std::array<HeadReuse, 10> heads;  // [num_layers][num_kv_heads]
};

// All traces of the table.
std::span<const RecordedReuse> RecordedReuses();
// That of the model whose context is nearest to `tokens`, by the ratio.
const RecordedReuse& ReuseFor(RecordedModel model, int64_t tokens);

}  // namespace retroinfer
