// Contents of GGUF files, right and wrong ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "gpu_worker/model/gguf/gguf_metadata.h"

namespace retroinfer::test_support {

template <typename T>
std::string GgufRaw(T value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

inline std::string GgufString(const std::string& text) {
  return GgufRaw(uint64_t{text.size()}) + text;
}

// Writes a file piece by piece; what is not said is as a right file has it.
class GgufText {
 public:
  GgufText& Version(uint32_t version) {
    version_ = version;
    return *this;
  }
  // A value with the bytes that follow its type.
  GgufText& Raw(const std::string& key, GgufValueType type, const std::string& value) {
    keys_ += GgufString(key) + GgufRaw(static_cast<uint32_t>(type)) + value;
    ++num_keys_;
    return *this;
  }
  GgufText& Int(const std::string& key, uint32_t value) {
    return Raw(key, GgufValueType::kUint32, GgufRaw(value));
  }
  GgufText& Float(const std::string& key, float value) {
    return Raw(key, GgufValueType::kFloat32, GgufRaw(value));
  }
  GgufText& Bool(const std::string& key, bool value) {
    return Raw(key, GgufValueType::kBool, GgufRaw(uint8_t{value}));
  }
  GgufText& Text(const std::string& key, const std::string& value) {
    return Raw(key, GgufValueType::kString, GgufString(value));
  }
  GgufText& Texts(const std::string& key, const std::vector<std::string>& values) {
    std::string array =
        GgufRaw(static_cast<uint32_t>(GgufValueType::kString)) + GgufRaw(uint64_t{values.size()});
    for (const std::string& value : values) array += GgufString(value);
    return Raw(key, GgufValueType::kArray, array);
  }
  GgufText& Ints(const std::string& key, const std::vector<int32_t>& values) {
    std::string array =
        GgufRaw(static_cast<uint32_t>(GgufValueType::kInt32)) + GgufRaw(uint64_t{values.size()});
    for (const int32_t value : values) array += GgufRaw(value);
    return Raw(key, GgufValueType::kArray, array);
  }

  // `dimensions` as files have them: the one whose elements lie side by side first.
  GgufText& Tensor(const std::string& name, const std::vector<uint64_t>& dimensions, uint32_t type,
                   const std::string& bytes) {
    return TensorAt(name, dimensions, type, bytes, data_.size());
  }
  GgufText& TensorAt(const std::string& name, const std::vector<uint64_t>& dimensions,
                     uint32_t type, const std::string& bytes, uint64_t offset) {
    tensors_ += GgufString(name) + GgufRaw(static_cast<uint32_t>(dimensions.size()));
    for (const uint64_t extent : dimensions) tensors_ += GgufRaw(extent);
    tensors_ += GgufRaw(type) + GgufRaw(offset);
    ++num_tensors_;
    data_ += bytes;
    data_.resize((data_.size() + kAlignment - 1) / kAlignment * kAlignment);
    return *this;
  }

  // Of a file whose header says that it has other numbers of tensors and keys.
  std::string Bytes(uint64_t num_tensors, uint64_t num_keys) const {
    std::string bytes =
        "GGUF" + GgufRaw(version_) + GgufRaw(num_tensors) + GgufRaw(num_keys) + keys_ + tensors_;
    bytes.resize((bytes.size() + kAlignment - 1) / kAlignment * kAlignment);
    return bytes + data_;
  }
  std::string Bytes() const { return Bytes(num_tensors_, num_keys_); }

 private:
  static constexpr size_t kAlignment = 32;

  uint32_t version_ = 3;
  std::string keys_;
  std::string tensors_;
  std::string data_;
  uint64_t num_keys_ = 0;
  uint64_t num_tensors_ = 0;
};

inline std::string Floats(const std::vector<float>& values) {
  std::string bytes;
  for (const float value : values) bytes += GgufRaw(value);
  return bytes;
}

// A model of two layers that is right, but for what is set over it: keys of the architecture, the
// embedding and no more.
inline GgufText SmallGgufModel(const std::string& architecture = "llama") {
  const std::string key = architecture + ".";
  return GgufText()
      .Text("general.architecture", architecture)
      .Int(key + "block_count", 2)
      .Int(key + "context_length", 4096)
      .Int(key + "embedding_length", 128)
      .Int(key + "feed_forward_length", 96)
      .Int(key + "attention.head_count", 2)
      .Int(key + "attention.head_count_kv", 1)
      .Float(key + "attention.layer_norm_rms_epsilon", 1e-5f)
      .Tensor("token_embd.weight", {128, 3}, 0, std::string(128 * 3 * 4, '\0'));
}

}  // namespace retroinfer::test_support
