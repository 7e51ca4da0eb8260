// What a tokenizer.json says, checked and in plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace retroinfer {

struct AddedTokenSpec {
  int32_t id = 0;
  std::string content;       // not empty, valid UTF-8
  bool special = false;      // made by templates only, unless the caller asks for more
  bool single_word = false;  // only where no word character is next to it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // takes the white space after it
  bool normalized = false;   // searched for in the normalised text
};

// One pattern that cuts a text into pieces.
struct SplitSpec {
  std::string pattern;  // PCRE2 syntax
  // What to do with the text that matches, and with the text between matches: it becomes a piece,
  // or it is dropped.
  bool keep_matches = true;
  bool keep_gaps = true;
};

struct VocabularyEntry {
  std::string token;  // in the byte alphabet, unless it is a special token
  int32_t id = 0;
};

struct MergeSpec {
  std::string left;
  std::string right;
};

struct BpeSpec {
  std::vector<VocabularyEntry> vocabulary;
  std::vector<MergeSpec> merges;  // the first has the highest priority
  bool ignore_merges = false;     // a piece that is a token as a whole is not merged from bytes
  // What a byte without a token of its own becomes; none: nothing, its neighbours are neighbours.
  std::optional<std::string> unknown_token;
  bool fuse_unknown = false;  // a run of such bytes becomes one token
};

struct TokenizerSpec {
  std::vector<AddedTokenSpec> added_tokens;
  bool nfc = false;
  std::vector<SplitSpec> splits;  // each cuts the pieces of the one before
  std::vector<int32_t> prefix;    // ids that the post-processor puts before a text (BOS)
  std::vector<int32_t> suffix;    // and after it
  BpeSpec model;
};

}  // namespace retroinfer
