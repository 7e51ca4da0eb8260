// Reads a retrieval trace back (gpu_worker/measuring/retrieval_trace/trace_encoder.h), for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "gpu_worker/measuring/retrieval_trace/trace_encoder.h"

namespace retroinfer::test_support {

class DecodedTrace {
 public:
  explicit DecodedTrace(const std::string& bytes) : bytes_(bytes) { Read(); }

  uint64_t num_layers = 0, num_kv_heads = 0, tokens_per_page = 0;
  std::vector<StepRetrieval> steps;
  std::vector<uint64_t> released;
  uint64_t num_lost = 0;
  int end = -1;  // why; -1: no such record

 private:
  struct Head {
    std::vector<uint32_t> last;
    std::map<uint32_t, uint32_t> pages;
  };

  void Read() {
    const std::string magic = TraceEncoder::kMagic;
    if (bytes_.substr(0, magic.size()) != magic) {
      ADD_FAILURE() << "no trace";
      return;
    }
    at_ = magic.size();
    num_layers = Number();
    num_kv_heads = Number();
    tokens_per_page = Number();
    Number();
    while (at_ < bytes_.size()) {
      const size_t length = Number();
      const size_t end = at_ + length;
      ASSERT_LE(end, bytes_.size()) << "cut off";
      Record(bytes_[at_++]);
      ASSERT_EQ(at_, end);
    }
  }

  uint64_t Number() {
    uint64_t number = 0;
    for (int shift = 0; at_ < bytes_.size() && shift < 64; shift += 7) {
      const auto byte = static_cast<uint8_t>(bytes_[at_++]);
      number |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return number;
    }
    ADD_FAILURE() << "a number is cut off";
    return 0;
  }

  void Record(char letter) {
    if (letter == 'R') {
      released.push_back(Number());
      sequences_.erase(released.back());
    }
    if (letter == 'L') num_lost += Number();
    if (letter == 'E') end = static_cast<int>(Number());
    if (letter != 'S') return;
    StepRetrieval step;
    step.sequence_id = Number();
    step.num_tokens = Number();
    step.num_clusters = static_cast<uint32_t>(Number());
    std::vector<Head>& heads = sequences_[step.sequence_id];
    heads.resize(num_layers * num_kv_heads);
    for (Head& head : heads) step.heads.push_back(Clusters(head));
    steps.push_back(std::move(step));
  }

  HeadRetrieval Clusters(Head& head) {
    HeadRetrieval found;
    std::map<uint32_t, RetrievedCluster> now;
    for (size_t i = 0; i < head.last.size(); ++i) {
      const auto byte = static_cast<uint8_t>(bytes_[at_ + i / 8]);
      if ((byte >> (i % 8) & 1) != 0) now[head.last[i]] = {head.last[i], 0, 0};
    }
    at_ += (head.last.size() + 7) / 8;
    const uint64_t fresh = Number();
    if (fresh % 2 != 0) found.num_left_out = static_cast<uint32_t>(Number());
    uint32_t next = 0;
    for (uint64_t i = 0; i < fresh / 2; ++i) {
      const uint32_t cluster = next + static_cast<uint32_t>(Number());
      now[cluster] = {cluster, 0, 0};
      next = cluster + 1;
    }
    for (auto& [number, cluster] : now) {
      const auto known = head.pages.find(number);
      cluster.num_pages = known != head.pages.end() ? known->second : NewPages(head, number);
      found.clusters.push_back(cluster);
    }
    next = 0;
    for (uint64_t left = Number(); left > 0; --left) {
      const uint32_t place = next + static_cast<uint32_t>(Number());
      found.clusters.at(place).num_missed = static_cast<uint32_t>(Number());
      next = place + 1;
    }
    head.last.clear();
    for (const RetrievedCluster& cluster : found.clusters) head.last.push_back(cluster.cluster);
    return found;
  }
  uint32_t NewPages(Head& head, uint32_t cluster) {
    return head.pages[cluster] = static_cast<uint32_t>(Number());
  }

  const std::string bytes_;
  size_t at_ = 0;
  std::map<uint64_t, std::vector<Head>> sequences_;
};

}  // namespace retroinfer::test_support
