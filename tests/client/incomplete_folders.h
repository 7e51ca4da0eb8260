// Copies of a model that lack what people's folders lack, and what they are told.
#pragma once

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "build_paths.h"
#include "tests/support/temp_folder.h"

namespace retroinfer::test_support {

struct IncompleteFolder {
  const char* told;  // part of the message
  // Changes a whole copy of the model. Returns the path to name, in the folder or the folder
  // itself.
  std::function<std::string(const TempFolder&)> make;
};

inline std::vector<IncompleteFolder> IncompleteFolders() {
  namespace fs = std::filesystem;
  static constexpr char kPointer[] =
      "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 988097824\n";
  const auto instead_of_weights = [](const TempFolder& folder, const std::string& name) {
    fs::remove(folder.File("model.safetensors"));
    fs::create_directories(fs::path(folder.File(name)).parent_path());
    folder.Write(name, "x");
    return folder.path();
  };
  const auto instead_of_tokenizer = [](const TempFolder& folder,
                                       const std::vector<std::string>& names) {
    fs::remove(folder.File("tokenizer.json"));
    for (const std::string& name : names) folder.Write(name, "x");
    return folder.path();
  };
  return {
      {"model.safetensors is a pointer of Git LFS to a file of 988097824 bytes",
       [](const TempFolder& folder) {
         folder.Write("model.safetensors", kPointer);
         return folder.path();
       }},
      {"tokenizer.json is a pointer of Git LFS",
       [](const TempFolder& folder) {
         folder.Write("tokenizer.json", kPointer);
         return folder.path();
       }},
      {"tokenizer.model, which is not read",
       [=](const TempFolder& folder) { return instead_of_tokenizer(folder, {"tokenizer.model"}); }},
      {"vocab.json and merges.txt",
       [=](const TempFolder& folder) {
         return instead_of_tokenizer(folder, {"vocab.json", "merges.txt"});
       }},
      {"model-q4_k_m.gguf: ends within the four bytes that say what it is",
       [=](const TempFolder& folder) { return instead_of_weights(folder, "model-q4_k_m.gguf"); }},
      {"model-q4_k_m.gguf: ends within the version",
       [](const TempFolder& folder) { return folder.Write("model-q4_k_m.gguf", "GGUF"); }},
      {"is a file of a model folder: name the folder",
       [](const TempFolder& folder) { return folder.File("model.safetensors"); }},
      {"the download is not complete",
       [=](const TempFolder& folder) {
         return instead_of_weights(folder, ".cache/huggingface/download/abc.incomplete");
       }},
      {"names 2 files of weights, of which 1 is missing: model-00002-of-00002.safetensors",
       [](const TempFolder& folder) {
         fs::rename(folder.File("model.safetensors"),
                    folder.File("model-00001-of-00002.safetensors"));
         folder.Write("model.safetensors.index.json",
                      R"({"weight_map": {"a": "model-00001-of-00002.safetensors",
                                         "b": "model-00002-of-00002.safetensors"}})");
         return folder.path();
       }},
  };
}

}  // namespace retroinfer::test_support
