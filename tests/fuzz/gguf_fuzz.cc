// A GGUF file, which comes from anywhere: its header, metadata, configuration, tokenizer, and the
// numbers of its tensors.
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gpu_worker/model/gguf/gguf_config.h"
#include "gpu_worker/model/gguf/gguf_files.h"
#include "gpu_worker/model/gguf/gguf_tensors.h"
#include "gpu_worker/model/gguf/gguf_tokenizer.h"

namespace {

namespace fs = std::filesystem;
using namespace retroinfer;  // NOLINT: one file

constexpr size_t kPartBytes = 4096;

void Require(bool condition) {
  if (!condition) std::abort();
}

struct Folder {
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "retroinfer-fuzz-XXXXXX").string();
    path = ::mkdtemp(pattern.data());
  }
  ~Folder() { fs::remove_all(path); }

  fs::path path;
};

// The beginning, the end, and what is between them in one piece of odd size.
void ReadNumbers(const HostTensor& tensor) {
  const size_t element = WeightTypeBytes(tensor.type);
  const size_t size = tensor.num_bytes();
  Require(size % element == 0);
  const size_t part = std::min(size, kPartBytes);
  std::vector<std::byte> memory;
  for (const size_t begin : {size_t{0}, (size - part) / element / 2 * element, size - part}) {
    Require(tensor.Bytes(begin, part, memory).size() == part);
  }
}

void ReadTensors(const std::shared_ptr<const GgufFiles>& files) {
  const auto config = ReadGgufConfig(*files);
  if (!config.ok()) return;
  Require(config->num_query_heads % config->num_kv_heads == 0);
  Require(config->vocab_size > 0 && config->context_length > 0);
  const auto generation = ReadGgufGeneration(*files, *config);
  if (generation.ok()) {
    for (const int32_t id : generation->eos_token_ids) {
      Require(id >= 0 && id < config->vocab_size);
    }
  }
  const auto tensors = GgufTensors::Create(files, *config);
  if (!tensors.ok()) return;
  for (const auto& [name, tensor] : tensors->tensors()) ReadNumbers(tensor);
}

void ReadTokenizer(const GgufFiles& files) {
  const auto tokenizer = ReadGgufTokenizer(files);
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
  const std::string path = (kFolder.path / "m-00001-of-00001.gguf").string();
  std::ofstream(path, std::ios::binary | std::ios::trunc)
      .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
  absl::StatusOr<GgufFiles> opened = GgufFiles::Open(path);
  if (!opened.ok()) return 0;
  const auto files = std::make_shared<const GgufFiles>(*std::move(opened));
  ReadTensors(files);
  ReadTokenizer(*files);
  return 0;
}
