// retrieval.toml: how much of a context policy wave retrieves for one model and one form of its KV
// and index, as measured on its user's text (`retroinfer tune`). The worker reads it (--retrieval).
//
//   version = 1
//   [model]     name, fingerprint (64 hexadecimal digits), kv_dtype, index_dtype, wave_index,
//   quality [target]    change or perplexity (what was to be kept), texts (what was measured on)
//   [[budget]]  the chosen ratio by length of context, the shortest first: MeasuredRatio's fields
//               and meets_target
//   [[measured]] all that was measured
//
// Unknown keys are refused: a key that a later version writes may change what the others mean.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace retroinfer::common {

// What a retrieval ratio did to the tokens behind a context, against full attention.
struct MeasuredRatio {
  int64_t context = 0;          // tokens
  double ratio = 0;             // of the clusters, in (0, 1]
  int64_t windows = 0;          // contexts that the figures are means of
  int64_t tokens = 0;           // that were scored, of all windows
  double change = 0;            // mean absolute change of a token's log-probability
  double change_error = 0;      // standard error of the mean, over windows
  double perplexity = 0;        // relative to that of full attention, less one
  double perplexity_error = 0;  // standard error, over windows
  double agreement = 0;         // share of the tokens whose likeliest token is the same, in [0, 1]
};

// What figures hold for.
struct RetrievalSubject {
  std::string model_name;   // for people
  std::string fingerprint;  // of the model: 64 hexadecimal digits
  std::string kv_dtype, index_dtype, wave_index, quality;
};

struct RetrievalFile {
  static constexpr size_t kBytesMax = size_t{1} << 20;
  static constexpr size_t kBudgetsMax = 64, kMeasuredMax = 4096, kTextsMax = 256;

  struct Budget {
    MeasuredRatio chosen;
    bool meets_target = false;
  };

  RetrievalSubject subject;
  // One of the two: most of `change`, or of `perplexity`.
  std::optional<double> target_change, target_perplexity;
  std::vector<std::string> texts;
  std::vector<Budget> budgets;  // at least one, by context
  std::vector<MeasuredRatio> measured;

  // The ratio of the shortest measured context that is as long; of the longest for what is longer.
  double RatioFor(int64_t context_tokens) const;
};

// Returns: INVALID_ARGUMENT with the line.
absl::StatusOr<RetrievalFile> ParseRetrievalFile(std::string_view text);
std::string FormatRetrievalFile(const RetrievalFile& file);

// Returns: as ReadNamedFile() and ParseRetrievalFile(), with the path.
absl::StatusOr<RetrievalFile> ReadRetrievalFile(const std::string& path);

// Returns: FAILED_PRECONDITION, with what differs, if the file is of another model or another form.
absl::Status CheckSubject(const RetrievalSubject& measured, const RetrievalSubject& served);

// "5.0 % up to 16,384 tokens, 3.5 % beyond"
std::string DescribeBudgets(const RetrievalFile& file);

}  // namespace retroinfer::common
