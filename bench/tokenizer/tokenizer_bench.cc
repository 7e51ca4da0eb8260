// Times Tokenizer::Encode() on texts of the size of a 1M-token prompt: ordinary ones, and ones made
// to be slow. Prints one JSON object a line. RETROINFER_BENCH_SMOKE=1 uses small texts.
//
//   tokenizer_bench [model folder]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "build_paths.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/utf8.h"

namespace retroinfer {
namespace {

constexpr int kRuns = 3;

struct Text {
  const char* name;
  std::string bytes;
};

std::string Repeat(const std::string& part, size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += part;
  return text;
}

std::string RandomCharacters(char32_t first, char32_t last, size_t bytes) {
  std::mt19937 random(7);
  std::uniform_int_distribution<uint32_t> code(first, last);
  std::string text;
  while (text.size() < bytes) AppendUtf8(code(random), text);
  return text;
}

// Words of a Zipf-like distribution, as prose has them.
std::string Prose(size_t bytes) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int> letter('a', 'z');
  std::uniform_int_distribution<int> length(1, 10);
  std::vector<std::string> words(50000);
  for (std::string& word : words) {
    for (int i = length(random); i > 0; --i) word.push_back(static_cast<char>(letter(random)));
  }
  std::exponential_distribution<double> rank(1.0 / 4000);
  std::string text;
  while (text.size() < bytes) {
    const auto index = static_cast<size_t>(rank(random));
    absl::StrAppend(&text, words[std::min(index, words.size() - 1)],
                    random() % 12 == 0 ? ".\n" : " ");
  }
  return text;
}

int Run(const std::string& folder) {
  const bool smoke = std::getenv("RETROINFER_BENCH_SMOKE") != nullptr;
  const size_t bytes = smoke ? 20'000 : 5'000'000;
  const auto tokenizer = Tokenizer::Load(folder);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "%s\n", std::string(tokenizer.status().message()).c_str());
    return 1;
  }
  const Text texts[] = {
      {"prose", Prose(bytes)},
      {"random_letters", RandomCharacters('!', '~', bytes)},
      {"random_cjk", RandomCharacters(0x4E00, 0x9FFF, bytes)},
      {"one_letter", Repeat("a", bytes)},
      {"spaces", Repeat(" ", bytes) + "x"},
      {"line_ends", Repeat(" \n", bytes)},
      {"marks", Repeat("\xCC\x81\xCC\xA3", bytes)},  // U+0301, U+0323: in descending order
      {"invalid_specials", Repeat("<|eot_id", bytes)},
  };
  for (const Text& text : texts) {
    std::vector<double> seconds;
    size_t num_tokens = 0;
    for (int run = 0; run < (smoke ? 1 : kRuns); ++run) {
      const auto begin = std::chrono::steady_clock::now();
      const auto ids = (*tokenizer)->Encode(text.bytes);
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
      if (!ids.ok()) {
        std::fprintf(stderr, "%s: %s\n", text.name, std::string(ids.status().message()).c_str());
        return 1;
      }
      num_tokens = ids->size();
      seconds.push_back(elapsed.count());
    }
    std::sort(seconds.begin(), seconds.end());
    const double median = seconds[seconds.size() / 2];
    std::printf(
        "{\"text\": \"%s\", \"bytes\": %zu, \"tokens\": %zu, \"seconds_median\": %.4f, "
        "\"seconds_max\": %.4f, \"mb_per_second\": %.1f}\n",
        text.name, text.bytes.size(), num_tokens, median, seconds.back(),
        static_cast<double>(text.bytes.size()) / median / 1e6);
  }
  return 0;
}

}  // namespace
}  // namespace retroinfer

int main(int argc, char** argv) {
  return retroinfer::Run(argc > 1 ? argv[1]
                                  : RETROINFER_SOURCE_DIR "/tests/golden/tokenizer/llama");
}
