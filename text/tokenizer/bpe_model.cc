// Encode() keeps the piece as a linked list of symbols and a heap of the pairs that could merge. A
// candidate whose symbols have changed since it was pushed is recognised when it is popped: its
// symbols are dead, or the pair now makes another token. Tokens only grow, so a pair that still
// makes the same token is the same pair.
#include "text/tokenizer/bpe_model.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/log/check.h"
#include "common/status/status_macros.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/text_normalizer.h"
#include "text/tokenizer/utf8.h"

namespace retroinfer {
namespace {

constexpr int32_t kIdsMax = 1 << 24;
constexpr int32_t kDead = -1;
constexpr int32_t kEnd = -1;

uint64_t PairKey(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

// For std::push_heap, which keeps the greatest on top: the best candidate is the greatest.
bool IsWorse(const BpeModel::Scratch::Candidate& a, const BpeModel::Scratch::Candidate& b) {
  return a.rank != b.rank ? a.rank > b.rank : a.position > b.position;
}

std::string Quoted(std::string_view token) {
  return absl::StrCat("\"", absl::CHexEscape(std::string(token.substr(0, 100))), "\"");
}

// The byte that "<0x0A>" stands for.
std::optional<char> FallbackByte(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  int value = 0;
  for (const char digit : token.substr(3, 2)) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(digit))) return std::nullopt;
    value = value * 16 + (absl::ascii_isdigit(static_cast<unsigned char>(digit))
                              ? digit - '0'
                              : absl::ascii_toupper(static_cast<unsigned char>(digit)) - 'A' + 10);
  }
  return static_cast<char>(value);
}

bool HasMarkBehindOther(std::string_view token) {
  size_t begin = 0;
  while (token.substr(begin).starts_with(kSpaceMark)) begin += kSpaceMark.size();
  return token.find(kSpaceMark, begin) != std::string_view::npos;
}

}  // namespace

absl::StatusOr<BpeModel> BpeModel::Create(const BpeSpec& spec,
                                          const absl::flat_hash_set<int32_t>& special_ids) {
  BpeModel model;
  model.byte_fallback_ = spec.byte_fallback;
  RETURN_IF_ERROR(model.AddVocabulary(spec));
  RETURN_IF_ERROR(spec.byte_fallback ? model.AddFallbackBytes(special_ids)
                                     : model.AddBytes(spec, special_ids));
  RETURN_IF_ERROR(model.AddMerges(spec, special_ids));
  if (spec.ignore_merges) model.AddWholePieces(spec, special_ids);
  return model;
}

absl::Status BpeModel::AddVocabulary(const BpeSpec& spec) {
  int32_t id_max = -1;
  for (const VocabularyEntry& entry : spec.vocabulary) {
    if (entry.id < 0 || entry.id >= kIdsMax) {
      return absl::InvalidArgumentError(absl::StrCat("vocabulary: token ", Quoted(entry.token),
                                                     " has the id ", entry.id,
                                                     ", ids are from 0 to ", kIdsMax - 1));
    }
    id_max = std::max(id_max, entry.id);
  }
  token_bytes_.resize(static_cast<size_t>(id_max + 1));
  has_id_.resize(static_cast<size_t>(id_max + 1), false);
  id_of_token_.reserve(spec.vocabulary.size());
  for (const VocabularyEntry& entry : spec.vocabulary) {
    const auto id = static_cast<size_t>(entry.id);
    if (has_id_[id]) {
      return absl::InvalidArgumentError(absl::StrCat("vocabulary: the id ", entry.id,
                                                     " occurs twice, the second time for ",
                                                     Quoted(entry.token)));
    }
    if (!id_of_token_.try_emplace(entry.token, entry.id).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("vocabulary: the token ", Quoted(entry.token), " occurs twice"));
    }
    has_id_[id] = true;
    token_bytes_[id] = BytesOf(entry.token);
  }
  return absl::OkStatus();
}

absl::Status BpeModel::AddBytes(const BpeSpec& spec,
                                const absl::flat_hash_set<int32_t>& special_ids) {
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    AppendUtf8(ByteAlphabetCharacter(static_cast<uint8_t>(byte)), token);
    const int32_t id = IdOf(token);
    if (id >= 0 && special_ids.contains(id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("vocabulary: the byte 0x", absl::Hex(byte, absl::kZeroPad2), " (",
                       Quoted(token), " in the byte alphabet) is a special token"));
    }
    lacks_[static_cast<size_t>(byte)] = id < 0;
    id_of_byte_[static_cast<size_t>(byte)] = id;
  }
  if (lacks_.all()) {
    return absl::InvalidArgumentError(
        "vocabulary: none of the 256 bytes has a token: this is no byte-level BPE");
  }
  return lacks_.none() ? absl::OkStatus() : AddUnknown(spec);
}

absl::Status BpeModel::AddFallbackBytes(const absl::flat_hash_set<int32_t>& special_ids) {
  for (int byte = 0; byte < 256; ++byte) {
    const std::string token = absl::StrFormat("<0x%02X>", byte);
    const int32_t id = IdOf(token);
    if (id < 0 || special_ids.contains(id)) {
      return absl::InvalidArgumentError(
          absl::StrCat("vocabulary: the token ", token,
                       id < 0 ? " is missing: byte_fallback needs one for each of the 256 bytes"
                              : " is a special token: a user's text could become it"));
    }
    id_of_byte_[static_cast<size_t>(byte)] = id;
  }
  for (const auto& [token, id] : id_of_token_) {
    const Utf8Step step = NextUtf8(token);
    const bool is_character =
        step.kind == Utf8Step::Kind::kCharacter && step.length == token.size();
    if (is_character && !special_ids.contains(id)) id_of_character_.emplace(step.code, id);
  }
  return absl::OkStatus();
}

absl::Status BpeModel::AddUnknown(const BpeSpec& spec) {
  if (spec.unknown_token.has_value()) {
    unknown_id_ = IdOf(*spec.unknown_token);
    if (unknown_id_ < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("vocabulary: ", lacks_.count(),
                       " of the 256 bytes have no token and are to become the unknown token ",
                       Quoted(*spec.unknown_token), ", which the vocabulary lacks, too"));
    }
    fuse_unknown_ = spec.fuse_unknown;
    for (size_t byte = 0; byte < lacks_.size(); ++byte) {
      if (lacks_[byte]) id_of_byte_[byte] = unknown_id_;
    }
  }
  for (size_t byte = 0; byte < lacks_.size(); ++byte) {
    const bool is_in_utf8 = byte != 0xC0 && byte != 0xC1 && byte < 0xF5;
    if (lacks_[byte] && is_in_utf8) drops_bytes_ = unknown_id_ < 0 || fuse_unknown_;
  }
  return absl::OkStatus();
}

absl::Status BpeModel::AddMerges(const BpeSpec& spec,
                                 const absl::flat_hash_set<int32_t>& special_ids) {
  merges_.reserve(spec.merges.size());
  may_cut_before_marks_ = byte_fallback_ && !spec.ignore_merges;
  for (size_t i = 0; i < spec.merges.size(); ++i) {
    const MergeSpec& merge = spec.merges[i];
    const std::string merged = merge.left + merge.right;
    const int32_t left = IdOf(merge.left);
    const int32_t right = IdOf(merge.right);
    const int32_t merged_id = IdOf(merged);
    if (left < 0 || right < 0 || merged_id < 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("merge ", i, ": the vocabulary lacks ",
                       Quoted(left < 0 ? merge.left : (right < 0 ? merge.right : merged))));
    }
    if (special_ids.contains(merged_id)) {
      if (byte_fallback_) continue;
      return absl::InvalidArgumentError(absl::StrCat("merge ", i, " makes the special token ",
                                                     Quoted(merged),
                                                     ": a user's text could become it"));
    }
    if (HasMarkBehindOther(merged)) may_cut_before_marks_ = false;
    // A pair that occurs twice has the priority of the last one, as in Hugging Face tokenizers.
    merges_[PairKey(left, right)] = {static_cast<int32_t>(i), merged_id};
  }
  return absl::OkStatus();
}

void BpeModel::AddWholePieces(const BpeSpec& spec,
                              const absl::flat_hash_set<int32_t>& special_ids) {
  for (const VocabularyEntry& entry : spec.vocabulary) {
    if (special_ids.contains(entry.id)) continue;
    // Over characters, what a text would have to be is the token as it is written.
    std::optional<std::string> bytes =
        byte_fallback_ ? entry.token : BytesFromAlphabet(entry.token);
    if (bytes.has_value()) id_of_piece_.emplace(*std::move(bytes), entry.id);
  }
}

std::string BpeModel::BytesOf(std::string_view token) const {
  if (!byte_fallback_) return BytesFromAlphabet(token).value_or(std::string(token));
  if (const std::optional<char> byte = FallbackByte(token)) return std::string(1, *byte);
  return absl::StrReplaceAll(std::string(token), {{std::string(kSpaceMark), " "}});
}

int32_t BpeModel::IdOf(std::string_view token) const {
  const auto found = id_of_token_.find(absl::string_view(token.data(), token.size()));
  return found == id_of_token_.end() ? -1 : found->second;
}

void BpeModel::PushCandidate(Scratch& scratch, int32_t left, int32_t right) const {
  const auto& symbols = scratch.symbols;
  const auto found = merges_.find(
      PairKey(symbols[static_cast<size_t>(left)].id, symbols[static_cast<size_t>(right)].id));
  if (found == merges_.end()) return;
  scratch.heap.push_back({found->second.rank, left, found->second.merged_id});
  std::push_heap(scratch.heap.begin(), scratch.heap.end(), IsWorse);
}

void BpeModel::ReadSymbols(std::string_view piece, std::vector<Scratch::Symbol>& symbols) const {
  symbols.clear();
  if (byte_fallback_) return ReadCharacters(piece, symbols);
  bool after_unknown = false;
  for (const char c : piece) {
    const auto byte = static_cast<uint8_t>(c);
    const bool unknown = lacks_[byte];
    const bool dropped = unknown && (unknown_id_ < 0 || (fuse_unknown_ && after_unknown));
    after_unknown = unknown;
    if (dropped) continue;
    const auto index = static_cast<int32_t>(symbols.size());
    symbols.push_back({id_of_byte_[byte], index - 1, index + 1});
  }
  if (!symbols.empty()) symbols.back().next = kEnd;
}

void BpeModel::ReadCharacters(std::string_view piece, std::vector<Scratch::Symbol>& symbols) const {
  const auto add = [&symbols](int32_t id) {
    const auto index = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, index - 1, index + 1});
  };
  while (!piece.empty()) {
    const Utf8Step step = NextUtf8(piece);
    if (const auto found = id_of_character_.find(step.code); found != id_of_character_.end()) {
      add(found->second);
    } else {
      for (size_t i = 0; i < step.length; ++i) add(id_of_byte_[static_cast<uint8_t>(piece[i])]);
    }
    piece.remove_prefix(step.length);
  }
  if (!symbols.empty()) symbols.back().next = kEnd;
}

void BpeModel::Encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>& out) const {
  RI_DCHECK(piece.size() < (size_t{1} << 30));
  if (piece.empty()) return;
  if (!id_of_piece_.empty()) {
    const auto found = id_of_piece_.find(absl::string_view(piece.data(), piece.size()));
    if (found != id_of_piece_.end()) {
      out.push_back(found->second);
      return;
    }
  }
  auto& symbols = scratch.symbols;
  ReadSymbols(piece, symbols);
  if (symbols.empty()) return;
  const auto count = static_cast<int32_t>(symbols.size());
  scratch.heap.clear();
  for (int32_t i = 0; i + 1 < count; ++i) PushCandidate(scratch, i, i + 1);

  while (!scratch.heap.empty()) {
    std::pop_heap(scratch.heap.begin(), scratch.heap.end(), IsWorse);
    const Scratch::Candidate best = scratch.heap.back();
    scratch.heap.pop_back();
    Scratch::Symbol& left = symbols[static_cast<size_t>(best.position)];
    if (left.id == kDead || left.next == kEnd) continue;
    Scratch::Symbol& right = symbols[static_cast<size_t>(left.next)];
    const auto merge = merges_.find(PairKey(left.id, right.id));
    if (merge == merges_.end() || merge->second.merged_id != best.merged_id) continue;
    left.id = best.merged_id;
    left.next = right.next;
    right.id = kDead;
    if (left.next != kEnd) {
      symbols[static_cast<size_t>(left.next)].previous = best.position;
      PushCandidate(scratch, best.position, left.next);
    }
    if (left.previous != kEnd) PushCandidate(scratch, left.previous, best.position);
  }
  for (int32_t i = 0; i != kEnd; i = symbols[static_cast<size_t>(i)].next) {
    out.push_back(symbols[static_cast<size_t>(i)].id);
  }
}

}  // namespace retroinfer
