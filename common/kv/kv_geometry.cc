#include "common/kv/kv_geometry.h"

#include "absl/strings/str_cat.h"

namespace retroinfer {

absl::Status KvGeometry::Validate() const {
  if (num_layers < 1 || num_layers > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV geometry: num_layers is ", num_layers, ", needs 1 to 1024"));
  }
  if (num_kv_heads < 1 || num_kv_heads > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV geometry: num_kv_heads is ", num_kv_heads, ", needs 1 to 1024"));
  }
  if (head_dim != 64 && head_dim != 128) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV geometry: head_dim is ", head_dim, ", needs 64 or 128"));
  }
  if (dtype != DType::kBf16 && dtype != DType::kF32) {
    return absl::InvalidArgumentError("KV geometry: the dtype of pages must be bf16 or f32");
  }
  return absl::OkStatus();
}

}  // namespace retroinfer
