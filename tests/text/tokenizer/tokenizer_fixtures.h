// Tokenizers and folders that the tests of this folder share.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "build_paths.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/regex_syntax.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/tokenizer_json.h"
#include "text/tokenizer/utf8.h"

namespace retroinfer {

inline std::string GoldenFolder() { return RETROINFER_SOURCE_DIR "/tests/golden/tokenizer"; }

// The ids of a golden file: base 64, two digits each.
inline std::vector<int32_t> DecodeGoldenIds(std::string_view digits) {
  constexpr std::string_view kDigits =
      "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-_";
  std::vector<int32_t> ids;
  for (size_t i = 0; i + 1 < digits.size(); i += 2) {
    ids.push_back(static_cast<int32_t>(kDigits.find(digits[i]) * 64 + kDigits.find(digits[i + 1])));
  }
  return ids;
}

// The golden tokenizer of this name, with `config` instead of its own.
inline std::unique_ptr<Tokenizer> GoldenTokenizer(std::string_view name, TokenizerConfig config) {
  const std::string path = GoldenFolder() + "/" + std::string(name) + "/tokenizer.json";
  const auto file = common::JsonReader::LoadObject(path, "tokenizer.json", kTokenizerJson);
  EXPECT_TRUE(file.ok()) << file.status();
  const auto spec = ReadTokenizerJson(*file);
  EXPECT_TRUE(spec.ok()) << spec.status();
  auto tokenizer = Tokenizer::Create(*spec, std::move(config));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

// The 256 bytes have their values as ids; each merge makes the next id, from 256. Bytes of merges
// are written in the byte alphabet.
inline BpeSpec TinyModel(std::initializer_list<std::pair<const char*, const char*>> merges) {
  BpeSpec spec;
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    AppendUtf8(ByteAlphabetCharacter(static_cast<uint8_t>(byte)), token);
    spec.vocabulary.push_back({token, byte});
  }
  for (const auto& [left, right] : merges) {
    spec.vocabulary.push_back(
        {absl::StrCat(left, right), static_cast<int32_t>(spec.vocabulary.size())});
    spec.merges.push_back({left, right});
  }
  return spec;
}

// A folder that is removed with its files.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "tokenizer-XXXXXX").string();
    EXPECT_NE(mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }

  std::filesystem::path Write(std::string_view name, std::string_view bytes) const {
    const std::filesystem::path path = path_ / name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

inline std::string Message(const absl::Status& status) { return std::string(status.message()); }

}  // namespace retroinfer
