// One layer's KV with given contents, on the host and on a backend.
#pragma once

#include <vector>

#include "gpu_worker/ops/attention/layer_kv.h"
#include "tests/support/device_data.h"
#include "tests/support/stored_tokens.h"

namespace retroinfer::test_support {

class LayerKvImage {
 public:
  // keys, values: [num_kv_heads][capacity][head_dim].
  LayerKvImage(DeviceData& data, std::span<const float> keys, std::span<const float> values,
               uint32_t num_kv_heads, uint32_t head_dim, DType dtype)
      : LayerKvImage(data, {.element = dtype}, dtype, keys, values, num_kv_heads, head_dim) {}
  // The same rounded as pages of `format` are.
  LayerKvImage(DeviceData& data, std::span<const float> keys, std::span<const float> values,
               uint32_t num_kv_heads, uint32_t head_dim, const KvFormat& format)
      : LayerKvImage(data, format.token, format.prompt, keys, values, num_kv_heads, head_dim) {}

  const LayerKv& view() const { return view_; }
  // The rounded elements of one token.
  const float* Key(uint32_t head, int64_t token) const { return At(host_keys_, head, token); }
  const float* Value(uint32_t head, int64_t token) const { return At(host_values_, head, token); }

 private:
  LayerKvImage(DeviceData& data, const VectorFormat& token, DType dtype,
               std::span<const float> keys, std::span<const float> values, uint32_t num_kv_heads,
               uint32_t head_dim)
      : host_keys_(RoundedTokens(keys, token, head_dim)),
        host_values_(RoundedTokens(values, token, head_dim)),
        keys_(data.Upload(ToBytes(host_keys_, dtype))),
        values_(data.Upload(ToBytes(host_values_, dtype))) {
    view_ = {.keys = keys_.bytes().device_data(),
             .values = values_.bytes().device_data(),
             .num_kv_heads = num_kv_heads,
             .head_dim = head_dim,
             .capacity = static_cast<int64_t>(keys.size() / num_kv_heads / head_dim),
             .dtype = dtype,
             .rounds_to_eight_bits = token == kEightBitTokens};
  }

  const float* At(const std::vector<float>& values, uint32_t head, int64_t token) const {
    return values.data() + (head * view_.capacity + token) * view_.head_dim;
  }

  std::vector<float> host_keys_;
  std::vector<float> host_values_;
  DeviceBuffer keys_;
  DeviceBuffer values_;
  LayerKv view_;
};

}  // namespace retroinfer::test_support
