#include "common/kv/kv_geometry.h"

#include <bit>

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
  if (format.token_code_bits != 0 && !std::has_single_bit(head_dim)) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV geometry: head_dim is ", head_dim, "; format ", std::string(format.name),
                     " turns keys by a Hadamard transform, which needs a power of two"));
  }
  if (!IsHeadDim(head_dim)) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV geometry: head_dim is ", head_dim, ", needs 64, 128 or 256"));
  }
  if (num_window_layers > 1024 || (num_window_layers == 0) != (window_tokens == 0) ||
      window_tokens > kMaxLayerWindow) {
    return absl::InvalidArgumentError(absl::StrCat(
        "KV geometry: ", num_window_layers, " window layers with a window of ", window_tokens,
        " tokens, needs none with 0, or 1 to 1024 with 1 to ", kMaxLayerWindow));
  }
  const uint32_t per_page = tokens_per_page();
  if (per_page == 0 || kDenseBlockTokens % per_page != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("KV geometry: a page of format ", std::string(format.name), " has ", per_page,
                     " tokens at head_dim ", head_dim, ", needs a divisor of ", kDenseBlockTokens));
  }
  return absl::OkStatus();
}

}  // namespace retroinfer
