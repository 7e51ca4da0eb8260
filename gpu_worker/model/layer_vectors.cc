#include "gpu_worker/model/layer_vectors.h"

#include <memory>

#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/host_numbers.h"
#include "gpu_worker/model/model_table.h"

namespace retroinfer {

absl::StatusOr<LayerVectors> LayerVectors::Upload(Device& device, std::span<const float> numbers,
                                                  uint32_t num_layers) {
  RI_CHECK(num_layers > 0 && numbers.size() % num_layers == 0);
  LayerVectors vectors;
  if (numbers.empty()) return vectors;
  vectors.size_ = numbers.size() / num_layers;
  const std::span<const std::byte> bytes = std::as_bytes(numbers);
  ASSIGN_OR_RETURN(vectors.buffer_, device.Allocate(bytes.size(), MemoryPurpose::kWeights));
  ASSIGN_OR_RETURN(const std::unique_ptr<Stream> stream, device.CreateStream(StreamKind::kCompute));
  RETURN_IF_ERROR(device.Upload(*stream, bytes, vectors.buffer_.bytes()));
  RETURN_IF_ERROR(stream->Synchronize());
  return vectors;
}

DeviceSpan<const float> LayerVectors::Of(uint32_t layer) const {
  if (size_ == 0) return {};
  return buffer_.as<const float>().subspan(layer * size_, size_);
}

std::vector<float> SinksOf(const ModelConfig& config, const Checkpoint& checkpoint) {
  std::vector<float> all;
  if (!config.sinks) return all;
  const ModelTable table(config);
  std::vector<std::byte> memory;
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    const HostTensor& tensor = checkpoint.tensors().at(table.Get(TensorRole::kSinks, layer).stored);
    const std::vector<float> sinks =
        NumbersOf(tensor.type, tensor.Bytes(0, tensor.num_bytes(), memory));
    all.insert(all.end(), sinks.begin(), sinks.end());
  }
  return all;
}

}  // namespace retroinfer
