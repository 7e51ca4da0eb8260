// Contents of safetensors files, right and wrong ones.
#pragma once

#include <cstdint>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace retroinfer::test_support {

// A file with this header length, header and data, whether they fit or not.
inline std::string SafetensorsText(uint64_t header_bytes, const std::string& header,
                                   const std::string& data) {
  std::string prefix(sizeof(header_bytes), '\0');
  std::memcpy(prefix.data(), &header_bytes, sizeof(header_bytes));
  return prefix + header + data;
}
inline std::string SafetensorsText(const std::string& header, const std::string& data) {
  return SafetensorsText(header.size(), header, data);
}

struct TensorText {
  std::string name;
  std::string dtype;  // "F32", ...
  std::vector<int64_t> shape;
  std::string bytes;
};

// A well-formed file of these tensors.
inline std::string SafetensorsText(const std::vector<TensorText>& tensors) {
  nlohmann::json header = nlohmann::json::object();
  std::string data;
  for (const TensorText& tensor : tensors) {
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {data.size(), data.size() + tensor.bytes.size()}}};
    data += tensor.bytes;
  }
  return SafetensorsText(header.dump(), data);
}

}  // namespace retroinfer::test_support
