// Which experts of a feed-forward network each row takes, and with which weights, by the scores
// that a router gives (Shazeer et al. 2017, "Outrageously large neural networks"; Mixtral,
// Qwen3-MoE).
//
// A row takes the experts with the largest scores, of equal ones the first; a score that is NaN
// comes last. Weights are the softmax of scores, of all experts or of the chosen ones alone, which
// is the same as scaling the former to a sum of 1.
//
// A row's result does not depend on the other rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "gpu_worker/ops/matrix.h"

namespace retroinfer {

inline constexpr int64_t kMostExperts = 256;       // of a layer
inline constexpr int64_t kMostExpertsPerRow = 16;  // that a row takes
inline constexpr int64_t kRowsOfRouteGroup =
    64;                                          // of few rows (`decode`), that are sorted together
inline constexpr int64_t kPairsOfFewTile = 8;    // of an expert, that are multiplied together where
inline constexpr int64_t kPairsOfManyTile = 64;  // rows are few, or many

// A pair is a row and an expert that it takes: pair p is of row p / per_row.
struct ExpertRoutes {
  int64_t num_experts = 0;
  int64_t per_row = 0;          // experts
  DeviceSpan<int32_t> experts;  // [rows * per_row] by pair; of a row, the largest weight first
  DeviceSpan<float> weights;    // [rows * per_row]
  DeviceSpan<int32_t> plan;     // [RoutePlan::Words]: the same by expert

  // Of the first `rows`.
  ExpertRoutes Rows(int64_t rows) const {
    ExpertRoutes routes = *this;
    const auto pairs = static_cast<size_t>(rows * per_row);
    routes.experts = experts.first(pairs);
    routes.weights = weights.first(pairs);
    return routes;
  }
};

// How pairs lie in ExpertRoutes::plan: groups of rows, one behind the other. Of each group
//
//   OFFSET                SIZE            DESCRIPTION
//   0                     1               tiles
//   1                     num_experts + 1 where an expert's pairs begin in the next part
//   num_experts + 2       pairs           pairs, counted from the group's first, by expert
//   ... + pairs           2 * MostTiles   of each tile: expert, place of its first pair
//
// in words of 32 bits. A tile is up to `tile_pairs` pairs of an expert. Groups are full but the
// last one; their parts are as large as if that was full, too.
struct RoutePlan {
  int64_t num_experts = 0;
  int64_t per_row = 0;
  int64_t group_rows = 0;
  int64_t tile_pairs = 0;

  // Few rows are cut into groups, of which the pairs' products fit into a multiprocessor's memory.
  static constexpr RoutePlan Of(int64_t num_experts, int64_t per_row, int64_t rows, bool decode) {
    return {num_experts, per_row,
            std::max<int64_t>(1, decode ? std::min(rows, kRowsOfRouteGroup) : rows),
            decode ? kPairsOfFewTile : kPairsOfManyTile};
  }

  constexpr int64_t num_groups(int64_t rows) const { return (rows + group_rows - 1) / group_rows; }
  constexpr int64_t group_pairs() const { return group_rows * per_row; }
  // Each expert that has a pair has a tile that may not be full.
  constexpr int64_t most_tiles() const {
    return std::min(num_experts, group_pairs()) + group_pairs() / tile_pairs;
  }
  constexpr int64_t begins_at() const { return 1; }
  constexpr int64_t pairs_at() const { return num_experts + 2; }
  constexpr int64_t tiles_at() const { return pairs_at() + group_pairs(); }
  constexpr int64_t group_words() const { return tiles_at() + 2 * most_tiles(); }
  constexpr int64_t Words(int64_t rows) const { return num_groups(rows) * group_words(); }

  // Enough for up to so many rows, few or many.
  static constexpr int64_t MostWords(int64_t num_experts, int64_t per_row, int64_t rows) {
    const auto words = [&](int64_t count, bool decode) {
      return Of(num_experts, per_row, count, decode).Words(count);
    };
    // A second group, however small, takes as much as a full one.
    const int64_t whole = (rows + kRowsOfRouteGroup - 1) / kRowsOfRouteGroup * kRowsOfRouteGroup;
    return std::max(words(rows, false), words(std::max(whole, int64_t{1}), true));
  }
};

struct RouteExpertsArgs {
  MatrixView scores;                // [n, experts] f32
  bool weights_sum_to_one = false;  // of the chosen experts; otherwise of all
  bool decode = false;              // as those who use `routes`
  ExpertRoutes routes;              // of n rows
};

}  // namespace retroinfer
