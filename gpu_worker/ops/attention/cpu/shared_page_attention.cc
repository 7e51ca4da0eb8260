// A task is a few rows of a run and one KV head: all of them attend to a chunk of tokens while it
// is in the cache. A row's result depends on the run's list and the row alone, and neither on the
// other rows nor on the number of threads.
#include "gpu_worker/ops/attention/cpu/shared_page_attention.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "common/status/status_macros.h"
#include "gpu_worker/ops/attention/cpu/chunk_feeder.h"
#include "gpu_worker/ops/attention/shared_page_attention_check.h"
#include "gpu_worker/ops/cpu/cpu_kv_format.h"

namespace retroinfer::cpu {
namespace {

constexpr int32_t kRowsOfTask = 4;  // whose states fit into the cache beside a chunk
constexpr int32_t kStatesOfRow = (kMaxDecodeGroup + kMaxGroup - 1) / kMaxGroup;

struct Task {
  int32_t list_row;  // whose list it is
  int32_t first_row;
  int32_t num_rows;  // at most kRowsOfTask
};

// Adds what a state has attended to the partial result of a query.
void AddTo(const AttentionState& state, int32_t g, int64_t query,
           const SharedPageAttentionArgs& args) {
  const auto place = static_cast<size_t>(g);
  const auto head_dim = static_cast<int64_t>(state.head_dim);
  float& max = args.sums.max.device_data()[query];
  float& sum = args.sums.sum.device_data()[query];
  float* acc = args.sums.acc.device_data() + query * head_dim;
  if (state.sum[place] == 0) return;
  const float raised = sum == 0 ? state.max[place] : std::max(max, state.max[place]);
  const float kept = sum == 0 ? 0 : std::exp(max - raised);
  const float weight = std::exp(state.max[place] - raised);
  std::array<float, kMaxHeadDim> added;
  ReadAccumulator(state, g, added.data());
  for (int64_t i = 0; i < head_dim; ++i) {
    acc[i] = (kept == 0 ? 0 : kept * acc[i]) + weight * added[static_cast<size_t>(i)];
  }
  sum = kept * sum + weight * state.sum[place];
  max = raised;
}

void AttendTask(const SharedPageAttentionArgs& args, const Task& task, int64_t kv_head) {
  const KvGeometry& geometry = args.geometry;
  const int64_t kv_heads = geometry.num_kv_heads;
  const auto head_dim = static_cast<int64_t>(geometry.head_dim);
  const int64_t group = args.queries.cols / (kv_heads * head_dim);
  const int64_t states_of_row = (group + kMaxGroup - 1) / kMaxGroup;
  const int64_t heads_of_state = (group + states_of_row - 1) / states_of_row;
  std::array<AttentionState, size_t{kRowsOfTask} * kStatesOfRow> memory;
  const auto num_states = static_cast<size_t>(task.num_rows * states_of_row);
  const std::span<AttentionState> states(memory.data(), num_states);
  const auto first_head = [&](int64_t state) { return state % states_of_row * heads_of_state; };
  const auto row_of = [&](int64_t state) { return task.first_row + state / states_of_row; };
  for (int64_t i = 0; i < std::ssize(states); ++i) {
    const auto* queries = reinterpret_cast<const float*>(args.queries.Rows(row_of(i), 1).data) +
                          (kv_head * group + first_head(i)) * head_dim;
    const int64_t heads = std::min(heads_of_state, group - first_head(i));
    BeginAttention(geometry.format.token.element, geometry.head_dim, static_cast<int32_t>(heads),
                   queries, args.scale, states[static_cast<size_t>(i)]);
  }
  const int64_t list = task.list_row * kv_heads + kv_head;
  const PageRef* pages = args.pages.device_data() + list * args.max_pages;
  ChunkFeeder feeder(geometry, states);
  for (int32_t i = 0; i < args.num_pages.device_data()[list]; ++i) {
    feeder.AddPage(pages[i].page, 0, pages[i].num_tokens);
  }
  feeder.Finish();
  for (int64_t i = 0; i < std::ssize(states); ++i) {
    const AttentionState& state = states[static_cast<size_t>(i)];
    for (int32_t g = 0; g < state.group; ++g) {
      AddTo(state, g, (row_of(i) * kv_heads + kv_head) * group + first_head(i) + g, args);
    }
  }
}

}  // namespace

absl::Status SharedPageAttention(CpuStream& stream, const SharedPageAttentionArgs& args) {
  RETURN_IF_ERROR(CheckSharedPageAttention(args, DType::kF32));
  RETURN_IF_ERROR(CheckKvFormat(kKvElementTypes, args.geometry.format));
  return stream.Launch([args](ThreadPool& pool) {
    std::vector<Task> tasks;
    for (size_t i = 0; i < args.runs.size(); ++i) {
      const RowRun& run = args.runs.device_data()[i];
      for (int32_t row = 0; row < run.num_rows; row += kRowsOfTask) {
        tasks.push_back({.list_row = run.first_row,
                         .first_row = run.first_row + row,
                         .num_rows = std::min(kRowsOfTask, run.num_rows - row)});
      }
    }
    const int64_t heads = args.geometry.num_kv_heads;
    pool.ParallelFor(std::ssize(tasks) * heads, [&](int64_t i) {
      AttendTask(args, tasks[static_cast<size_t>(i / heads)], i % heads);
    });
  });
}

}  // namespace retroinfer::cpu
