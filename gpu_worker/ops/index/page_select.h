// Chooses pages of candidate clusters by the codes of their tokens (common/kv/token_code.h), and
// says what the candidates hold beside these pages (decision 0085).
//
// The logit of a token for a query head is estimated as that of its centroid plus that of its code.
// For each head the weights are the softmax over all tokens of all candidates; a page's rank for
// the KV head is the largest of its tokens' weight over the group's heads. Of the pages with the
// best ranks so many are chosen as the budget says.
//
// A selection is two calls. After PageSelect the chosen pages can be looked up. CandidateRest then
// replaces the candidates' scores: by the logarithm of the mean weight exp(x - v / 2) of a
// cluster's tokens, where x is a token's logit, v the variance of its error, and tokens of chosen
// pages weigh nothing; -inf where all pages are chosen. With those scores the candidates are
// clusters like others to estimate.h and unseen_mass.h. It is called once after each PageSelect,
// behind it on the same or another stream, with the same arguments.
//
// Bound by memory: reads the code of each candidate's token once for the whole group of query
// heads. What a row gets does not depend on the batch.
#pragma once

#include <cstddef>
#include <cstdint>

#include "gpu_worker/ops/index/cluster_select.h"
#include "gpu_worker/ops/matrix.h"
#include "gpu_worker/ops/meta_pool.h"

namespace retroinfer {

// A page that is to be attended.
struct ChosenPage {
  PageId page;          // in the arena
  uint16_t num_tokens;  // 1 to tokens_per_page
  uint16_t place;       // among the pages of its cluster
};
static_assert(sizeof(ChosenPage) == 8);

// What the two calls, and the kernels of one, tell each other.
struct PageSelectScratch {
  DeviceSpan<float> masses;         // [batch, query_heads, max_pages]: log of the sum of exp(x)
  DeviceSpan<float> rests;          // the same of exp(x - v / 2); -inf for chosen pages
  DeviceSpan<ChosenPage> pages;     // [batch, kv_heads, max_pages], cluster by cluster
  DeviceSpan<int32_t> first_pages;  // [batch, kv_heads, max_candidates], places in `pages`
  DeviceSpan<int32_t> num_pages;    // [batch, kv_heads]
};

struct PageSelectArgs {
  MatrixView queries;  // [batch, query_heads * head_dim], activation dtype, after RoPE
  MetaPoolView pool;
  uint32_t layer = 0;
  DeviceSpan<const MetaIndexView> indexes;  // [batch]
  float scale = 0;                          // 1 / sqrt(head_dim)
  DeviceSpan<float> scores;  // [batch, query_heads, max_clusters], from centroid_score.h
  int64_t max_clusters = 0;
  DeviceSpan<const int32_t> candidates;      // [batch, kv_heads, max_candidates], live clusters
  DeviceSpan<const int32_t> num_candidates;  // [batch, kv_heads]
  int64_t max_candidates = 0;
  DeviceSpan<const SelectionBudget> budgets;  // [batch]: num_pages
  // REQUIRES: suffices for the pages of every cluster chosen; a multiple of 64.
  int64_t max_pages = 0;
  int64_t max_chosen = 0;          // pages of a KV head that are chosen, at most
  DeviceSpan<ChosenPage> chosen;   // [batch, kv_heads, max_chosen], in the order of the candidates
  DeviceSpan<int32_t> num_chosen;  // [batch, kv_heads]
  DeviceSpan<int32_t> num_tokens;  // [batch, kv_heads]: whose codes were read
  PageSelectScratch scratch;
};

}  // namespace retroinfer
