// A padded tensor is runs of bytes, each with zeros behind it: of rows that are heads a run is all
// rows of a head, of columns that are heads a run is those of one head in one row.
#include "gpu_worker/model/padded_heads.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/kv/kv_geometry.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/model_table.h"

namespace retroinfer {
namespace {

class PaddedRuns : public TensorCoding {
 public:
  PaddedRuns(size_t stored_bytes, size_t padded_bytes)
      : stored_bytes_(stored_bytes), padded_bytes_(padded_bytes) {}

  Extent StoredExtent(size_t begin, size_t size) const override {
    const size_t first = StoredBefore(begin);
    return {first, StoredBefore(begin + size) - first};
  }

  void Decode(std::span<const std::byte> stored, size_t begin,
              std::span<std::byte> out) const override {
    size_t from = 0;
    for (size_t at = 0; at < out.size();) {
      const size_t in_run = (begin + at) % padded_bytes_;
      const bool is_stored = in_run < stored_bytes_;
      const size_t size =
          std::min((is_stored ? stored_bytes_ : padded_bytes_) - in_run, out.size() - at);
      if (is_stored) {
        std::memcpy(out.data() + at, stored.data() + from, size);
        from += size;
      } else {
        std::memset(out.data() + at, 0, size);
      }
      at += size;
    }
    RI_CHECK(from == stored.size());
  }

 private:
  // Stored bytes before byte `at` of the tensor.
  size_t StoredBefore(size_t at) const {
    return at / padded_bytes_ * stored_bytes_ + std::min(at % padded_bytes_, stored_bytes_);
  }

  const size_t stored_bytes_;  // of a run
  const size_t padded_bytes_;  // of a run and the zeros behind it
};

// The dimension of a tensor that is heads; none: -1.
int DimensionOfHeads(TensorRole role) {
  switch (role) {
    case TensorRole::kQuery:
    case TensorRole::kKey:
    case TensorRole::kValue:
    case TensorRole::kQueryBias:
    case TensorRole::kKeyBias:
    case TensorRole::kValueBias:
      return 0;
    case TensorRole::kAttentionOutput:
      return 1;
    default:
      return -1;
  }
}

}  // namespace

uint32_t ServedHeadDim(int64_t head_dim) {
  constexpr int64_t kLeast = 32, kStep = 8;
  if (head_dim < kLeast || head_dim % kStep != 0) return 0;
  for (const uint32_t served : kHeadDims) {
    if (head_dim <= served) return served;
  }
  return 0;
}

absl::Status PadHeads(const ModelConfig& config, Checkpoint& checkpoint) {
  if (config.stored_head_dim == 0) return absl::OkStatus();
  const ModelTable table(config);
  std::vector<std::pair<std::string, HostTensor>> padded;
  for (const auto& [name, stored] : table.stored()) {
    const int dimension = DimensionOfHeads(stored.parts.front().role);
    if (dimension < 0) continue;
    const auto heads_at = static_cast<size_t>(dimension);
    std::vector<int64_t> shape = stored.shape;
    RI_CHECK(shape[heads_at] % config.head_dim == 0);
    shape[heads_at] = shape[heads_at] / config.head_dim * config.stored_head_dim;
    ASSIGN_OR_RETURN(HostTensor tensor, checkpoint.Find(name, shape));
    size_t number_bytes = WeightTypeBytes(tensor.type);  // of one number of all heads
    for (size_t i = heads_at + 1; i < shape.size(); ++i) {
      number_bytes *= static_cast<size_t>(shape[i]);
    }
    RI_CHECK(tensor.coding == nullptr);  // only folders have such heads
    tensor.coding = std::make_shared<PaddedRuns>(config.stored_head_dim * number_bytes,
                                                 config.head_dim * number_bytes);
    tensor.shape = stored.shape;
    padded.emplace_back(name, std::move(tensor));
  }
  for (auto& [name, tensor] : padded) checkpoint.Replace(name, std::move(tensor));
  return absl::OkStatus();
}

}  // namespace retroinfer
