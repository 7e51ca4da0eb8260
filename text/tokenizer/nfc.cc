// utf8proc's own driver sorts combining marks by exchanging neighbours, which takes quadratic time
// on a long run of marks in descending order. Here each character is decomposed by itself, runs of
// marks are sorted with std::stable_sort, and utf8proc composes the result in one pass.
//
// The text is cut at code points that are newer than the tables of Hugging Face tokenizers, so that
// the result does not depend on how new utf8proc's tables are.
#include "text/tokenizer/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/status/status_macros.h"
#include "text/tokenizer/unicode_additions.h"
#include "text/tokenizer/utf8.h"

namespace retroinfer {
namespace {

constexpr size_t kBytesMax = size_t{512} << 20;

int CombiningClass(utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class; }

absl::Status Utf8procStatus(utf8proc_ssize_t error) {
  return absl::InternalError(absl::StrCat("normalising to NFC: ", utf8proc_errmsg(error)));
}

// Appends the canonical decomposition of `code`.
absl::Status Decompose(char32_t code, std::vector<utf8proc_int32_t>& out) {
  constexpr int kCharactersMax = 32;  // a canonical decomposition has at most 4
  utf8proc_int32_t decomposed[kCharactersMax];
  int boundary_state = 0;
  const utf8proc_ssize_t count =
      utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code), decomposed, kCharactersMax,
                              UTF8PROC_DECOMPOSE, &boundary_state);
  if (count < 0 || count > kCharactersMax) return Utf8procStatus(count);
  out.insert(out.end(), decomposed, decomposed + count);
  return absl::OkStatus();
}

// Brings every run of combining marks into the order of their classes.
void SortMarks(std::vector<utf8proc_int32_t>& codes) {
  auto run = codes.begin();
  while (run != codes.end()) {
    if (CombiningClass(*run) == 0) {
      ++run;
      continue;
    }
    const auto run_end = std::find_if(
        run, codes.end(), [](utf8proc_int32_t code) { return CombiningClass(code) == 0; });
    std::stable_sort(run, run_end, [](utf8proc_int32_t a, utf8proc_int32_t b) {
      return CombiningClass(a) < CombiningClass(b);
    });
    run = run_end;
  }
}

bool IsBarrier(char32_t code) {
  const auto after =
      std::upper_bound(kNfcBarriers.begin(), kNfcBarriers.end(), code,
                       [](char32_t value, const CodeRange& range) { return value < range.first; });
  return after != kNfcBarriers.begin() && code <= std::prev(after)->last;
}

// Composes `codes`, which are decomposed, and moves them to the end of `out`.
absl::Status Compose(std::vector<utf8proc_int32_t>& codes, std::string& out) {
  SortMarks(codes);
  const utf8proc_ssize_t count =
      utf8proc_normalize_utf32(codes.data(), static_cast<utf8proc_ssize_t>(codes.size()),
                               static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (count < 0) return Utf8procStatus(count);
  for (utf8proc_ssize_t i = 0; i < count; ++i) {
    AppendUtf8(static_cast<char32_t>(codes[static_cast<size_t>(i)]), out);
  }
  codes.clear();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> NormalizeNfc(std::string_view text) {
  const auto is_ascii = [](char c) { return static_cast<unsigned char>(c) < 0x80; };
  if (std::all_of(text.begin(), text.end(), is_ascii)) return std::string(text);
  if (text.size() > kBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("normalising to NFC: the text has ",
                                                     text.size(), " bytes, at most ", kBytesMax,
                                                     " are possible"));
  }
  std::string normalized;
  normalized.reserve(text.size());
  std::vector<utf8proc_int32_t> codes;  // decomposed, since the last barrier
  codes.reserve(text.size());
  for (std::string_view rest = text; !rest.empty();) {
    const Utf8Step step = NextUtf8(rest);
    rest.remove_prefix(step.length);
    if (step.code < 0x80) {
      codes.push_back(static_cast<utf8proc_int32_t>(step.code));
    } else if (IsBarrier(step.code)) {
      RETURN_IF_ERROR(Compose(codes, normalized));
      AppendUtf8(step.code, normalized);
    } else {
      RETURN_IF_ERROR(Decompose(step.code, codes));
    }
  }
  RETURN_IF_ERROR(Compose(codes, normalized));
  return normalized;
}

}  // namespace retroinfer
