// The files of a model folder, which come from anywhere. The first byte says which of them the rest
// is; the others are those of a small model.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include "gpu_worker/model/generation_config.h"
#include "gpu_worker/model/model_config.h"
#include "gpu_worker/model/safetensors_file.h"
#include "text/tokenizer/tokenizer.h"

namespace {

namespace fs = std::filesystem;
using namespace retroinfer;  // NOLINT: one file

void Require(bool condition) {
  if (!condition) std::abort();
}

struct Folder {
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "retroinfer-fuzz-XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  ~Folder() { fs::remove_all(path); }

  std::string Write(const std::string& name, std::string_view bytes) const {
    const std::string file = (path / name).string();
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
    return file;
  }

  fs::path path;
};

constexpr std::string_view kTokenizer =
    R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}})";

void ReadWeights(const std::string& path) {
  const auto file = SafetensorsFile::Open(path);
  if (!file.ok()) return;
  volatile std::byte last{};
  for (const auto& [name, tensor] : file->tensors()) {
    uint64_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= static_cast<uint64_t>(size);
    Require(elements * WeightTypeBytes(tensor.type) == tensor.stored.size());
    if (!tensor.stored.empty()) last = tensor.stored.back();
  }
}

void ReadTokenizer(const fs::path& folder) {
  const auto tokenizer = Tokenizer::Load(folder);
  if (!tokenizer.ok()) return;
  for (const std::string_view text : {"ab <|x|> \u00e9\u4e16 \n\n 123", "", "a"}) {
    const auto ids = (*tokenizer)->Encode(text, {.add_special = true, .parse_special = true});
    if (!ids.ok()) continue;
    for (const int32_t id : *ids) Require(id >= 0 && id < (*tokenizer)->vocab_size());
    Require((*tokenizer)->Decode(*ids, false).size() < (size_t{1} << 24));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Folder kFolder;
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 5) {
    case 0:
      ReadWeights(kFolder.Write("model.safetensors", rest));
      break;
    case 1:
      kFolder.Write("config.json", rest);
      (void)LoadModelConfig(kFolder.path.string());
      break;
    case 2:
      kFolder.Write("generation_config.json", rest);
      (void)LoadGenerationConfig(kFolder.path.string(), ModelConfig{});
      break;
    case 3:
      fs::remove(kFolder.path / "tokenizer_config.json");
      kFolder.Write("tokenizer.json", rest);
      ReadTokenizer(kFolder.path);
      break;
    case 4:
      kFolder.Write("tokenizer.json", kTokenizer);
      kFolder.Write("tokenizer_config.json", rest);
      ReadTokenizer(kFolder.path);
      break;
  }
  return 0;
}
