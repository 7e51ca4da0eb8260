#include "gpu_worker/measuring/retrieval_trace/trace_encoder.h"

#include <algorithm>

#include "common/kv/kv_geometry.h"
#include "common/log/check.h"

namespace retroinfer {
namespace {

void AddNumber(uint64_t number, std::string& out) {
  for (; number >= 0x80; number >>= 7) out.push_back(static_cast<char>(number | 0x80));
  out.push_back(static_cast<char>(number));
}

std::string Record(char letter, const std::string& content) {
  std::string record;
  AddNumber(content.size() + 1, record);
  record.push_back(letter);
  record += content;
  return record;
}

std::string NumberRecord(char letter, uint64_t number) {
  std::string content;
  AddNumber(number, content);
  return Record(letter, content);
}

// Counts what comes in increasing order from zero on.
class Increasing {
 public:
  void Add(uint32_t number, std::string& out) {
    AddNumber(number - next_, out);
    next_ = number + 1;
  }

 private:
  uint32_t next_ = 0;
};

bool IsIn(const std::vector<uint32_t>& sorted, uint32_t cluster) {
  return std::binary_search(sorted.begin(), sorted.end(), cluster);
}

// A bit for each of the clusters `before`: it is one of `now`.
void AddKept(const std::vector<uint32_t>& before, const std::vector<uint32_t>& now,
             std::string& out) {
  std::string bits((before.size() + 7) / 8, '\0');
  for (size_t i = 0; i < before.size(); ++i) {
    if (!IsIn(now, before[i])) continue;
    bits[i / 8] = static_cast<char>(static_cast<uint8_t>(bits[i / 8]) | (1u << (i % 8)));
  }
  out += bits;
}

void AddMisses(const std::vector<RetrievedCluster>& clusters, std::string& out) {
  AddNumber(static_cast<uint64_t>(std::count_if(clusters.begin(), clusters.end(),
                                                [](const auto& c) { return c.num_missed != 0; })),
            out);
  Increasing places;
  for (size_t i = 0; i < clusters.size(); ++i) {
    if (clusters[i].num_missed == 0) continue;
    places.Add(static_cast<uint32_t>(i), out);
    AddNumber(clusters[i].num_missed, out);
  }
}

}  // namespace

std::string TraceEncoder::Header() const {
  std::string header = kMagic;
  for (const uint32_t number : {shape_.num_layers, shape_.num_kv_heads, shape_.tokens_per_page,
                                uint32_t{kClustersPerMetaBlock}}) {
    AddNumber(number, header);
  }
  return header;
}

void TraceEncoder::AddHead(const HeadRetrieval& head, uint32_t num_clusters, HeadState& state,
                           std::string& out) {
  state.is_known.resize(std::max<size_t>(state.is_known.size(), num_clusters));
  std::vector<uint32_t> now;
  now.reserve(head.clusters.size());
  for (const RetrievedCluster& cluster : head.clusters) {
    RI_CHECK(cluster.cluster < num_clusters && (now.empty() || now.back() < cluster.cluster));
    now.push_back(cluster.cluster);
  }
  AddKept(state.last, now, out);
  std::string fresh, pages;
  uint64_t num_fresh = 0;
  Increasing numbers;
  for (const RetrievedCluster& cluster : head.clusters) {
    if (!IsIn(state.last, cluster.cluster)) {
      ++num_fresh;
      numbers.Add(cluster.cluster, fresh);
    }
    if (state.is_known[cluster.cluster]) continue;
    state.is_known[cluster.cluster] = true;
    AddNumber(cluster.num_pages, pages);
  }
  AddNumber(num_fresh * 2 + (head.num_left_out != 0 ? 1 : 0), out);
  if (head.num_left_out != 0) AddNumber(head.num_left_out, out);
  out += fresh;
  out += pages;
  AddMisses(head.clusters, out);
  state.last = std::move(now);
}

std::string TraceEncoder::Step(const StepRetrieval& step) {
  const size_t num_heads = size_t{shape_.num_layers} * shape_.num_kv_heads;
  RI_CHECK(step.heads.size() == num_heads);
  std::vector<HeadState>& states = sequences_[step.sequence_id];
  states.resize(num_heads);
  std::string content;
  AddNumber(step.sequence_id, content);
  AddNumber(step.num_tokens, content);
  AddNumber(step.num_clusters, content);
  for (size_t i = 0; i < num_heads; ++i) {
    AddHead(step.heads[i], step.num_clusters, states[i], content);
  }
  return Record('S', content);
}

std::string TraceEncoder::Release(uint64_t sequence_id) {
  if (sequences_.erase(sequence_id) == 0) return "";
  return NumberRecord('R', sequence_id);
}

std::string TraceEncoder::Lost(uint64_t num_steps) { return NumberRecord('L', num_steps); }

std::string TraceEncoder::EndOf(End end) { return NumberRecord('E', static_cast<uint64_t>(end)); }

}  // namespace retroinfer
