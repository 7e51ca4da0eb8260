// Byte-pair encoding (Sennrich et al., 2016): over bytes, as GPT-2 and its successors use it, or
// over characters, as SentencePiece does (Kudo and Richardson, 2018).
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/statusor.h"
#include "text/tokenizer/tokenizer_spec.h"

namespace retroinfer {

// A vocabulary over bytes may lack some of the 256: those that its makers' texts did not have. Such
// a byte of a text becomes the unknown token, or nothing, as in Hugging Face tokenizers. One over
// characters (byte_fallback) has a token for each byte, "<0x00>" to "<0xFF>", of which characters
// that it lacks are made.
//
// Threads: immutable after construction.
class BpeModel {
 public:
  // `special_ids`: tokens that no text may become, but for the unknown token.
  //
  // Returns: INVALID_ARGUMENT if an id or a token occurs twice, an id is negative or over the limit
  //          of 2^24, no byte has a token, some have none and the vocabulary lacks the unknown
  //          token that they are to become, a merge names a token that the vocabulary lacks, or a
  //          merge or a byte makes a special token.
  static absl::StatusOr<BpeModel> Create(const BpeSpec& spec,
                                         const absl::flat_hash_set<int32_t>& special_ids);

  // Memory that Encode() uses again from call to call.
  struct Scratch {
    // A token of the piece so far, in a list linked both ways; `id` is kDead once it is merged into
    // its left neighbour.
    struct Symbol {
      int32_t id;
      int32_t previous;
      int32_t next;
    };
    struct Candidate {
      int32_t rank;
      int32_t position;   // of the left symbol
      int32_t merged_id;  // what the pair becomes
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
  };

  // Appends the ids of `piece` to `out`: none, if all of its bytes are dropped. Always the merge of
  // the highest priority first, the leftmost of equals.
  //
  // REQUIRES: piece.size() < 2^30; it is valid UTF-8.
  // Cost:     O(n log n).
  void Encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const;

  // The bytes of each token by id; empty for ids that the vocabulary skips. Tokens outside of the
  // byte alphabet (special ones) are as they are written.
  const std::vector<std::string>& token_bytes() const { return token_bytes_; }
  // The bytes that `token`, as it is written, stands for in a text.
  std::string BytesOf(std::string_view token) const;
  bool byte_fallback() const { return byte_fallback_; }
  // Whether no merge joins U+2581 to another character before it: a text may then be cut before
  // each run of them, and its pieces encoded one by one. With byte_fallback only.
  bool may_cut_before_marks() const { return may_cut_before_marks_; }

  bool HasId(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < has_id_.size() && has_id_[static_cast<size_t>(id)];
  }

  // Whether a text of any length may have no tokens, or one: a byte that UTF-8 has is dropped, or
  // runs of it are.
  bool drops_bytes() const { return drops_bytes_; }

  // The id of a token as the vocabulary writes it; -1 if there is none.
  int32_t IdOf(std::string_view token) const;

 private:
  struct Merge {
    int32_t rank;
    int32_t merged_id;
  };

  BpeModel() = default;
  absl::Status AddVocabulary(const BpeSpec& spec);
  absl::Status AddBytes(const BpeSpec& spec, const absl::flat_hash_set<int32_t>& special_ids);
  absl::Status AddFallbackBytes(const absl::flat_hash_set<int32_t>& special_ids);
  absl::Status AddUnknown(const BpeSpec& spec);
  absl::Status AddMerges(const BpeSpec& spec, const absl::flat_hash_set<int32_t>& special_ids);
  void AddWholePieces(const BpeSpec& spec, const absl::flat_hash_set<int32_t>& special_ids);
  void ReadSymbols(std::string_view piece, std::vector<Scratch::Symbol>& symbols) const;
  void ReadCharacters(std::string_view piece, std::vector<Scratch::Symbol>& symbols) const;
  void PushCandidate(Scratch& scratch, int32_t left, int32_t right) const;

  absl::flat_hash_map<std::string, int32_t> id_of_token_;  // as written
  std::vector<std::string> token_bytes_;
  std::vector<bool> has_id_;
  std::array<int32_t, 256> id_of_byte_{};
  absl::flat_hash_map<char32_t, int32_t> id_of_character_;  // filled with byte_fallback only
  std::bitset<256> lacks_;                                  // bytes without a token of their own
  int32_t unknown_id_ = -1;                                 // what these become; -1: nothing
  bool fuse_unknown_ = false;
  bool drops_bytes_ = false;
  bool byte_fallback_ = false;
  bool may_cut_before_marks_ = false;
  absl::flat_hash_map<uint64_t, Merge> merges_;            // (left id << 32 | right id)
  absl::flat_hash_map<std::string, int32_t> id_of_piece_;  // filled with ignore_merges only
};

}  // namespace retroinfer
