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
  // The SentencePiece kind: tokens are written in characters, U+2581 for a space, and a character
  // without a token of its own becomes a token "<0x0A>" for each of its bytes.
  bool byte_fallback = false;
};

// Where a tokenizer of the SentencePiece kind writes U+2581. Metaspace, a pre-tokenizer, always
// replaces spaces.
struct SpaceMarkSpec {
  enum class Front : uint8_t { kNone, kFirst, kEach };

  // Before added tokens are searched for in the normalised text (normalizers Prepend and Replace).
  bool normalizes_front = false;  // a mark before each text between others, whatever it begins with
  bool normalizes_spaces = false;
  // Behind that (Metaspace): a mark before each text between added tokens, or before the first
  // where nothing is before it, unless a mark is there.
  bool replaces_spaces = false;
  Front front = Front::kNone;
  // A decoded text loses the space that it begins with (decoder Strip).
  bool drops_front = false;
};

struct TokenizerSpec {
  std::vector<AddedTokenSpec> added_tokens;
  bool nfc = false;
  SpaceMarkSpec marks;            // with byte_fallback only
  std::vector<SplitSpec> splits;  // each cuts the pieces of the one before
  std::vector<int32_t> prefix;    // ids that the post-processor puts before a text (BOS)
  std::vector<int32_t> suffix;    // and after it
  BpeSpec model;
};

}  // namespace retroinfer
