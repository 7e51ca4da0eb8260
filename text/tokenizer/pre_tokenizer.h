// Cuts a text into the pieces that BPE works on.
#pragma once

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "text/tokenizer/split_regex.h"
#include "text/tokenizer/tokenizer_spec.h"

namespace retroinfer {

// Threads: immutable after construction; one Run for each thread that uses it.
class PreTokenizer {
 public:
  // Returns: INVALID_ARGUMENT if a pattern does not compile.
  static absl::StatusOr<PreTokenizer> Create(const std::vector<SplitSpec>& splits);

  // The memory of one use: matchers and pieces.
  class Run {
   public:
    // REQUIRES: `pre_tokenizer` outlives the run.
    explicit Run(const PreTokenizer& pre_tokenizer);

    // Cuts `text` into pieces, none of them empty; they point into `text`. The result is valid
    // until the next call.
    //
    // REQUIRES: `text` is valid UTF-8.
    // Returns:  RESOURCE_EXHAUSTED if a pattern needs too many steps for this text.
    absl::StatusOr<const std::vector<std::string_view>*> Split(std::string_view text);

   private:
    absl::Status SplitPiece(size_t stage, std::string_view piece);

    const PreTokenizer* pre_tokenizer_;
    std::vector<SplitMatcher> matchers_;  // one per stage
    std::vector<std::string_view> pieces_;
    std::vector<std::string_view> next_pieces_;
  };

 private:
  struct Stage {
    SplitRegex regex;
    bool keep_matches;
    bool keep_gaps;
  };

  std::vector<Stage> stages_;
};

}  // namespace retroinfer
