#include "text/tokenizer/missing_tokenizer.h"

#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace retroinfer {
namespace {

namespace fs = std::filesystem;

constexpr char kConvert[] =
    "python3 -c \"from transformers import AutoTokenizer as T; "
    "T.from_pretrained('.').save_pretrained('.')\"";

bool Has(const fs::path& folder, const char* name) {
  std::error_code error;
  return fs::exists(folder / name, error);
}

}  // namespace

absl::Status MissingTokenizer(const fs::path& folder) {
  const std::string beginning = absl::StrCat(folder.string(), " has no tokenizer.json");
  if (Has(folder, "vocab.json") && Has(folder, "merges.txt")) {
    return absl::NotFoundError(absl::StrCat(
        beginning, ", but vocab.json and merges.txt, of which transformers makes one: run in it ",
        kConvert));
  }
  if (Has(folder, "tokenizer.model")) {
    return absl::NotFoundError(
        absl::StrCat(beginning,
                     ", but a tokenizer.model, which is not read. Get the tokenizer.json of the "
                     "same model, or run in it ",
                     kConvert,
                     " (of the kinds of SentencePiece, BPE with byte_fallback is supported, as "
                     "Llama 2 and Gemma have; Unigram is not)"));
  }
  return absl::NotFoundError(
      absl::StrCat(beginning,
                   "; is the download complete? With the model's name on the Hugging Face hub: 'hf "
                   "download NAME tokenizer.json tokenizer_config.json --local-dir ",
                   folder.string(), "'"));
}

}  // namespace retroinfer
