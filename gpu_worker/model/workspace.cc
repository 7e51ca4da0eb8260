#include "gpu_worker/model/workspace.h"

#include <algorithm>

#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/model_limits.h"

namespace retroinfer {
namespace {

constexpr size_t kAlignment = 256;
// What a model may have, operations take.
static_assert(kMaxExperts <= kMostExperts && kMaxExpertsPerToken <= kMostExpertsPerRow);

// Where each part begins, in bytes.
struct Offsets {
  size_t hidden, normed, cos, sin, window_cos, window_sin, query_cos, query_sin, qkv, attention,
      gate_up, end;
  // Where layers have experts.
  size_t scores, experts, weights, plan, gated, products;
};

int64_t PlanWords(const ModelConfig& config, int64_t rows) {
  return RoutePlan::MostWords(config.experts.count, config.experts.per_token, rows);
}

Offsets Arrange(const ModelConfig& config, DType dtype, int64_t rows) {
  size_t used = 0;
  const auto take_bytes = [&](size_t bytes) {
    const size_t offset = used;
    used += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return offset;
  };
  const auto take = [&](int64_t cols, size_t element_bytes) {
    return take_bytes(static_cast<size_t>(rows * cols) * element_bytes);
  };
  const size_t element = DTypeBytes(dtype);
  Offsets offsets = {};
  offsets.hidden = take(config.hidden_size, element);
  offsets.normed = take(config.hidden_size, element);
  const int64_t pairs = config.rotated_dims() / 2;
  const int64_t window_pairs = config.window_rope.has_value() ? pairs : 0;
  const int64_t query_pairs = config.rope.query_growth == 0 ? 0 : pairs;
  offsets.cos = take(pairs, sizeof(float));
  offsets.sin = take(pairs, sizeof(float));
  offsets.window_cos = take(window_pairs, sizeof(float));
  offsets.window_sin = take(window_pairs, sizeof(float));
  offsets.query_cos = take(query_pairs, sizeof(float));
  offsets.query_sin = take(query_pairs, sizeof(float));
  const size_t shared = used;
  offsets.qkv = take(config.query_size() + 2 * config.kv_size(), element);
  offsets.attention = take(config.query_size(), element);
  const size_t attention_end = used;
  used = shared;
  if (config.experts.count == 0) {
    offsets.gate_up = take(2 * config.intermediate_size, element);
  } else {
    const int64_t each = config.experts.per_token;
    offsets.scores = take(config.experts.count, sizeof(float));
    offsets.experts = take(each, sizeof(int32_t));
    offsets.weights = take(each, sizeof(float));
    offsets.plan = take_bytes(static_cast<size_t>(PlanWords(config, rows)) * sizeof(int32_t));
    offsets.gated = take(each * config.intermediate_size, element);
    offsets.products = take(each * config.hidden_size, element);
  }
  offsets.end = std::max(attention_end, used);
  return offsets;
}

Workspace::ExpertRows RowsOfExperts(const ModelConfig& config, const Offsets& offsets, DType dtype,
                                    int64_t rows, const DeviceBuffer& buffer) {
  const int64_t pairs = rows * config.experts.per_token;
  const auto matrix = [&](size_t offset, DType type, int64_t count, int64_t cols) {
    const size_t bytes = static_cast<size_t>(count * cols) * DTypeBytes(type);
    return MatrixView::Dense(buffer.bytes().subspan(offset, bytes), type, count, cols);
  };
  const auto words = [&](size_t offset, int64_t count) {
    return buffer.as<int32_t>().subspan(offset / sizeof(int32_t), static_cast<size_t>(count));
  };
  return {.scores = matrix(offsets.scores, DType::kF32, rows, config.experts.count),
          .routes = {.num_experts = config.experts.count,
                     .per_row = config.experts.per_token,
                     .experts = words(offsets.experts, pairs),
                     .weights = buffer.as<float>().subspan(offsets.weights / sizeof(float),
                                                           static_cast<size_t>(pairs)),
                     .plan = words(offsets.plan, PlanWords(config, rows))},
          .gated = matrix(offsets.gated, dtype, pairs, config.intermediate_size),
          .products = matrix(offsets.products, dtype, pairs, config.hidden_size)};
}

Workspace::ExpertRows First(const Workspace::ExpertRows& all, int64_t rows) {
  if (all.routes.num_experts == 0) return {};
  const int64_t pairs = rows * all.routes.per_row;
  return {.scores = all.scores.Rows(0, rows),
          .routes = all.routes.Rows(rows),
          .gated = all.gated.Rows(0, pairs),
          .products = all.products.Rows(0, pairs)};
}

}  // namespace

size_t Workspace::Bytes(const ModelConfig& config, DType dtype, int64_t max_rows) {
  return Arrange(config, dtype, max_rows).end;
}

absl::StatusOr<Workspace> Workspace::Create(Device& device, const ModelConfig& config, DType dtype,
                                            int64_t max_rows) {
  RI_CHECK(max_rows > 0);
  const Offsets offsets = Arrange(config, dtype, max_rows);
  Workspace workspace;
  ASSIGN_OR_RETURN(workspace.buffer_, device.Allocate(offsets.end, MemoryPurpose::kActivations));
  const auto matrix = [&](size_t offset, int64_t cols) {
    const size_t bytes = static_cast<size_t>(max_rows * cols) * DTypeBytes(dtype);
    return MatrixView::Dense(workspace.buffer_.bytes().subspan(offset, bytes), dtype, max_rows,
                             cols);
  };
  const auto table = [&](size_t offset, bool is_there) {
    if (!is_there) return DeviceSpan<float>();
    return workspace.buffer_.as<float>().subspan(
        offset / sizeof(float), static_cast<size_t>(max_rows) * config.rotated_dims() / 2);
  };
  const bool grows = config.rope.query_growth != 0;
  const bool has_window_rope = config.window_rope.has_value();
  const MatrixView qkv = matrix(offsets.qkv, config.query_size() + 2 * config.kv_size());
  workspace.max_ = {.hidden = matrix(offsets.hidden, config.hidden_size),
                    .normed = matrix(offsets.normed, config.hidden_size),
                    .cos = table(offsets.cos, true),
                    .sin = table(offsets.sin, true),
                    .window_cos = table(offsets.window_cos, has_window_rope),
                    .window_sin = table(offsets.window_sin, has_window_rope),
                    .query_cos = table(offsets.query_cos, grows),
                    .query_sin = table(offsets.query_sin, grows),
                    .qkv = qkv,
                    .queries = qkv.Columns(0, config.query_size()),
                    .keys = qkv.Columns(config.query_size(), config.kv_size()),
                    .values = qkv.Columns(config.query_size() + config.kv_size(), config.kv_size()),
                    .attention = matrix(offsets.attention, config.query_size()),
                    .gate_up = {},
                    .experts = {}};
  if (config.experts.count == 0) {
    workspace.max_.gate_up = matrix(offsets.gate_up, 2 * config.intermediate_size);
  } else {
    workspace.max_.experts = RowsOfExperts(config, offsets, dtype, max_rows, workspace.buffer_);
  }
  return workspace;
}

Workspace::Views Workspace::Rows(int64_t rows) const {
  RI_CHECK(rows <= max_rows());
  const auto pairs = max_.cos.size() / static_cast<size_t>(max_rows());
  const size_t table_size = static_cast<size_t>(rows) * pairs;
  const size_t query_size = max_.query_cos.empty() ? 0 : table_size;
  return {.hidden = max_.hidden.Rows(0, rows),
          .normed = max_.normed.Rows(0, rows),
          .cos = max_.cos.first(table_size),
          .sin = max_.sin.first(table_size),
          .window_cos = max_.window_cos.first(std::min(table_size, max_.window_cos.size())),
          .window_sin = max_.window_sin.first(std::min(table_size, max_.window_sin.size())),
          .query_cos = max_.query_cos.first(query_size),
          .query_sin = max_.query_sin.first(query_size),
          .qkv = max_.qkv.Rows(0, rows),
          .queries = max_.queries.Rows(0, rows),
          .keys = max_.keys.Rows(0, rows),
          .values = max_.values.Rows(0, rows),
          .attention = max_.attention.Rows(0, rows),
          .gate_up = max_.gate_up.rows == 0 ? MatrixView() : max_.gate_up.Rows(0, rows),
          .experts = First(max_.experts, rows)};
}

}  // namespace retroinfer
