// One decode step of wave attention over an index with codes of tokens, by plain arithmetic: the
// rule of page_select.h, estimate.h and decode_attention.h in doubles.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <span>
#include <vector>

#include "gpu_worker/ops/index/cluster_select.h"
#include "gpu_worker/ops/meta_pool.h"
#include "tests/support/stored_tokens.h"
#include "tests/support/stored_vectors.h"
#include "tests/support/token_code_reference.h"

namespace retroinfer::test_support {

// One KV head of one layer, whose index is blocks 0 on of a pool on the host.
class CodedAttention {
 public:
  CodedAttention(const MetaPoolView& pool, uint32_t layer, uint32_t head, int32_t num_blocks,
                 std::span<const std::byte> arena)
      : pool_(pool), layer_(layer), head_(head), arena_(arena) {
    for (int32_t i = 0; i < num_blocks * int32_t{kClustersPerMetaBlock}; ++i) {
      clusters_.push_back(ReadCluster(i));
    }
  }

  // Outputs of the group's heads [group][d]. `dense`: keys and values [n][d] of the steady zone.
  std::vector<std::vector<double>> Attend(const std::vector<std::vector<double>>& queries,
                                          const SelectionBudget& budget,
                                          const std::vector<std::vector<double>>& dense_keys,
                                          const std::vector<std::vector<double>>& dense_values);

 private:
  struct Token {
    std::vector<int> levels;
    double scale, error;
    std::vector<double> key, value;
  };
  struct Cluster {
    std::vector<double> centroid, value_sum;
    std::vector<Token> tokens;
  };
  // Sums of weights, and of weighted values, of one head.
  struct Sums {
    double mass = 0;
    std::vector<double> values;

    void Add(double weight, const std::vector<double>& value, double count = 1) {
      values.resize(value.size());
      mass += weight * count;
      for (size_t i = 0; i < value.size(); ++i) values[i] += weight * value[i];
    }
  };

  static double Dot(const std::vector<double>& a, const std::vector<double>& b) {
    return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  }
  // Indexes of `ranks`, the largest first.
  static std::vector<size_t> Best(const std::vector<double>& ranks) {
    std::vector<size_t> order(ranks.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, [&](size_t a, size_t b) { return ranks[a] > ranks[b]; });
    return order;
  }
  Cluster ReadCluster(int32_t number) const;

  const MetaPoolView pool_;
  const uint32_t layer_, head_;
  const std::span<const std::byte> arena_;
  std::vector<Cluster> clusters_;
};

inline CodedAttention::Cluster CodedAttention::ReadCluster(int32_t number) const {
  const KvGeometry& geometry = pool_.geometry;
  const size_t d = geometry.head_dim;
  const auto block = static_cast<MetaBlockId>(number / 64);
  const auto place = static_cast<size_t>(number % 64);
  const TokenCodeLayout layout(geometry.format, geometry.head_dim);
  Cluster cluster;
  for (size_t i = 0; i < d; ++i) {
    cluster.centroid.push_back(StoredNumber(pool_.Centroids(block, layer_, head_),
                                            geometry.format.centroid, geometry.head_dim,
                                            place * d + i));
    cluster.value_sum.push_back(StoredNumber(pool_.ValueSums(block, layer_, head_),
                                             geometry.format.value_sum, geometry.head_dim,
                                             place * d + i));
  }
  const MetaEntry& entry = pool_.Entries(block, layer_, head_)[place];
  const uint32_t per_page = geometry.tokens_per_page();
  for (uint32_t t = 0; t < entry.num_tokens; ++t) {
    const CodePlace at = CodePlaceOf(number / 64, pool_.FirstCodes(block, layer_, head_)[place], t);
    const std::byte* const codes = pool_.Codes(static_cast<MetaBlockId>(at.block), layer_, head_);
    TokenCodeFactors factors;
    std::memcpy(&factors, codes + layout.factors_offset + at.in_block * sizeof(factors),
                sizeof(factors));
    Token token{.levels = {},
                .scale = FromF16(factors.scale),
                .error = FromF16(factors.error),
                .key = {},
                .value = {}};
    for (size_t i = 0; i < d; ++i) {
      token.levels.push_back(
          LevelOf(reinterpret_cast<const uint8_t*>(codes) + at.in_block * layout.code_bytes, i));
    }
    const auto page = TokenNumbers(
        arena_.subspan(size_t{entry.first_place + t / per_page} * kPageBytes, kPageBytes),
        geometry.format.token, geometry.head_dim);
    const auto key = page.begin() + static_cast<int64_t>(t % per_page * d);
    const auto value = key + static_cast<int64_t>(per_page * d);
    token.key.assign(key, key + static_cast<int64_t>(d));
    token.value.assign(value, value + static_cast<int64_t>(d));
    cluster.tokens.push_back(std::move(token));
  }
  return cluster;
}

inline std::vector<std::vector<double>> CodedAttention::Attend(
    const std::vector<std::vector<double>>& queries, const SelectionBudget& budget,
    const std::vector<std::vector<double>>& dense_keys,
    const std::vector<std::vector<double>>& dense_values) {
  const double d = pool_.geometry.head_dim;
  const size_t group = queries.size(), per_page = pool_.geometry.tokens_per_page();
  const auto num_candidates = static_cast<size_t>(budget.num_retrieved);
  // Clusters by the largest share of a head.
  std::vector<std::vector<double>> scores(group);
  std::vector<double> ranks(clusters_.size());
  for (size_t g = 0; g < group; ++g) {
    double all = 0;
    for (const Cluster& cluster : clusters_) {
      scores[g].push_back(Dot(queries[g], cluster.centroid) / std::sqrt(d));
      all += cluster.tokens.empty() ? 0 : std::exp(scores[g].back());
    }
    for (size_t c = 0; c < clusters_.size(); ++c) {
      if (clusters_[c].tokens.empty()) continue;
      ranks[c] = std::max(ranks[c], std::exp(scores[g][c]) / all);
    }
  }
  const std::vector<size_t> order = Best(ranks);
  // Logits of the candidates' tokens, and their pages by the largest share of a head.
  struct Page {
    size_t cluster, first;
  };
  std::vector<Page> pages;
  for (size_t i = 0; i < num_candidates; ++i) {
    const size_t num_tokens = clusters_[order[i]].tokens.size();
    for (size_t t = 0; t < num_tokens; t += per_page) pages.push_back({order[i], t});
  }
  const auto logit = [&](size_t g, const std::vector<double>& turned, size_t c,
                         const Token& token) {
    double product = 0;
    for (size_t i = 0; i < turned.size(); ++i) product += turned[i] * token.levels[i];
    return scores[g][c] + token.scale * product / std::sqrt(d);
  };
  std::vector<double> page_ranks(pages.size());
  std::vector<std::vector<double>> turned;
  for (size_t g = 0; g < group; ++g) {
    turned.push_back(TurnedVector(queries[g]));
    std::vector<double> masses;
    for (const Page& page : pages) {
      const auto& tokens = clusters_[page.cluster].tokens;
      double mass = 0;
      for (size_t t = page.first; t < std::min(page.first + per_page, tokens.size()); ++t) {
        mass += std::exp(logit(g, turned[g], page.cluster, tokens[t]));
      }
      masses.push_back(mass);
    }
    const double all = std::accumulate(masses.begin(), masses.end(), 0.0);
    for (size_t i = 0; i < pages.size(); ++i) {
      page_ranks[i] = std::max(page_ranks[i], masses[i] / all);
    }
  }
  const std::vector<size_t> page_order = Best(page_ranks);
  std::vector<std::vector<double>> outputs;
  for (size_t g = 0; g < group; ++g) {
    Sums sums;
    const auto exactly = [&](const std::vector<double>& key, const std::vector<double>& value) {
      sums.Add(std::exp(Dot(queries[g], key) / std::sqrt(d)), value);
    };
    for (size_t i = 0; i < dense_keys.size(); ++i) exactly(dense_keys[i], dense_values[i]);
    for (size_t i = 0; i < pages.size(); ++i) {
      const Page& page = pages[page_order[i]];
      const Cluster& cluster = clusters_[page.cluster];
      const double size = static_cast<double>(cluster.tokens.size());
      for (size_t t = page.first; t < std::min(page.first + per_page, cluster.tokens.size()); ++t) {
        const Token& token = cluster.tokens[t];
        if (i < static_cast<size_t>(budget.num_pages)) {
          exactly(token.key, token.value);
          continue;
        }
        const double spread = std::sqrt(Dot(queries[g], queries[g])) * token.error / d;
        const double weight =
            std::exp(logit(g, turned[g], page.cluster, token) - spread * spread / 2);
        sums.Add(weight / size, cluster.value_sum, size);
      }
    }
    for (size_t i = num_candidates; i < num_candidates + static_cast<size_t>(budget.num_estimated);
         ++i) {
      const Cluster& cluster = clusters_[order[i]];
      if (cluster.tokens.empty()) continue;
      sums.Add(std::exp(scores[g][order[i]]), cluster.value_sum,
               static_cast<double>(cluster.tokens.size()));
    }
    for (double& value : sums.values) value /= sums.mass;
    outputs.push_back(std::move(sums.values));
  }
  return outputs;
}

}  // namespace retroinfer::test_support
