// Room for the activations of one layer, allocated once and used by every layer and step.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/model/model_config.h"
#include "gpu_worker/ops/matrix.h"
#include "gpu_worker/ops/model/route_experts.h"

namespace retroinfer {

// Activations of up to max_rows() tokens. The attention half of a layer and the feed-forward half
// use the same bytes one after the other; the other parts have bytes of their own.
//
// Threads: one; its contents belong to the work enqueued last on one stream.
// Owns:    the device memory.
class Workspace {
 public:
  // Bytes that Create allocates.
  static size_t Bytes(const ModelConfig& config, DType dtype, int64_t max_rows);

  // REQUIRES: max_rows > 0.
  static absl::StatusOr<Workspace> Create(Device& device, const ModelConfig& config, DType dtype,
                                          int64_t max_rows);

  Workspace() = default;
  int64_t max_rows() const { return max_.hidden.rows; }

  // What rows give on their way through the experts that they choose, C of them: row r of a chunk
  // has rows C * r to C * r + C - 1 of the matrices in activation dtype.
  struct ExpertRows {
    MatrixView scores;    // [rows, experts] f32
    ExpertRoutes routes;  // of C experts a row
    MatrixView gated;     // [C * rows, intermediate]
    MatrixView products;  // [C * rows, hidden]
  };

  // Matrices in activation dtype, contiguous but for the three that are columns of qkv.
  struct Views {
    MatrixView hidden;      // [rows, hidden]
    MatrixView normed;      // [rows, hidden]
    DeviceSpan<float> cos;  // [rows, rotated_dims / 2]
    DeviceSpan<float> sin;  // [rows, rotated_dims / 2]
    // The same of window layers, if their RoPE is another one; empty without.
    DeviceSpan<float> window_cos;
    DeviceSpan<float> window_sin;
    DeviceSpan<float> query_cos;  // the same of queries that grow with their positions, or empty
    DeviceSpan<float> query_sin;
    MatrixView qkv;        // [rows, (query_heads + 2 * kv_heads) * head_dim]: the next three
    MatrixView queries;    // [rows, query_heads * head_dim]
    MatrixView keys;       // [rows, kv_heads * head_dim]
    MatrixView values;     // [rows, kv_heads * head_dim]
    MatrixView attention;  // [rows, query_heads * head_dim]
    MatrixView gate_up;    // [rows, 2 * intermediate]; overlaps qkv and attention
    ExpertRows experts;    // in the place of gate_up, where layers have experts
  };
  // The first `rows` of every part. REQUIRES: rows <= max_rows().
  Views Rows(int64_t rows) const;

 private:
  DeviceBuffer buffer_;
  Views max_;
};

}  // namespace retroinfer
