#include "text/tokenizer/bpe_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <random>

#include "absl/strings/str_format.h"
#include "tests/text/tokenizer/tokenizer_fixtures.h"

namespace retroinfer {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int32_t> Encode(const BpeModel& model, std::string_view piece) {
  BpeModel::Scratch scratch;
  std::vector<int32_t> ids;
  model.Encode(piece, scratch, ids);
  return ids;
}

BpeModel Create(const BpeSpec& spec, const absl::flat_hash_set<int32_t>& special_ids = {}) {
  auto model = BpeModel::Create(spec, special_ids);
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

std::string CreateError(const BpeSpec& spec, const absl::flat_hash_set<int32_t>& special_ids = {}) {
  const absl::Status status = BpeModel::Create(spec, special_ids).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return Message(status);
}

TEST(BpeModelTest, MergesByPriorityThenFromTheLeft) {
  // 256: "ab", 257: "bc", 258: "abc"
  const BpeModel model = Create(TinyModel({{"a", "b"}, {"b", "c"}, {"ab", "c"}}));
  EXPECT_THAT(Encode(model, ""), ElementsAre());
  EXPECT_THAT(Encode(model, "a"), ElementsAre('a'));
  EXPECT_THAT(Encode(model, "abc"), ElementsAre(258));
  EXPECT_THAT(Encode(model, "bcab"), ElementsAre(257, 256));
  EXPECT_THAT(Encode(model, "xbcx"), ElementsAre('x', 257, 'x'));
  // Of equal pairs the leftmost merges first.
  const BpeModel pairs = Create(TinyModel({{"a", "a"}}));
  EXPECT_THAT(Encode(pairs, "aaaaa"), ElementsAre(256, 256, 'a'));
  // Bytes are looked up by their characters: U+0120 is a space.
  const BpeModel space = Create(TinyModel({{"\u0120", "a"}}));
  EXPECT_THAT(Encode(space, " a"), ElementsAre(256));
}

TEST(BpeModelTest, IgnoreMergesTakesWholePieces) {
  BpeSpec spec = TinyModel({{"a", "b"}});
  spec.vocabulary.push_back({"xyz", 300});
  EXPECT_THAT(Encode(Create(spec), "xyz"), ElementsAre('x', 'y', 'z'));
  spec.ignore_merges = true;
  EXPECT_THAT(Encode(Create(spec), "xyz"), ElementsAre(300));
  EXPECT_THAT(Encode(Create(spec), "xyzab"), ElementsAre('x', 'y', 'z', 256));
  // A special token is not made from text.
  EXPECT_THAT(Encode(Create(spec, {300}), "xyz"), ElementsAre('x', 'y', 'z'));
}

TEST(BpeModelTest, RefusesContradictions) {
  BpeSpec spec = TinyModel({{"a", "b"}});
  spec.vocabulary.push_back({"zz", 256});
  EXPECT_THAT(CreateError(spec), HasSubstr("the id 256 occurs twice"));

  spec = TinyModel({{"a", "b"}});
  spec.vocabulary.push_back({"ab", 400});
  EXPECT_THAT(CreateError(spec), HasSubstr("the token \"ab\" occurs twice"));

  spec = TinyModel({});
  spec.vocabulary.push_back({"zz", -1});
  EXPECT_THAT(CreateError(spec), HasSubstr("has the id -1"));
  spec.vocabulary.back().id = 1 << 24;
  EXPECT_THAT(CreateError(spec), HasSubstr("has the id 16777216"));

  spec = TinyModel({});
  spec.vocabulary.erase(spec.vocabulary.begin() + 'q');
  spec.unknown_token = "<unk>";
  EXPECT_THAT(CreateError(spec), HasSubstr("1 of the 256 bytes have no token"));
  EXPECT_THAT(CreateError(spec), HasSubstr("\"<unk>\", which the vocabulary lacks"));
  EXPECT_THAT(CreateError(BpeSpec{}), HasSubstr("none of the 256 bytes has a token"));

  spec = TinyModel({});
  spec.merges.push_back({"a", "b"});
  EXPECT_THAT(CreateError(spec), HasSubstr("merge 0: the vocabulary lacks \"ab\""));
  spec.merges[0] = {"qq", "b"};
  EXPECT_THAT(CreateError(spec), HasSubstr("lacks \"qq\""));

  EXPECT_THAT(CreateError(TinyModel({{"a", "b"}}), {256}), HasSubstr("the special token"));
  EXPECT_THAT(CreateError(TinyModel({}), {'a'}), HasSubstr("the byte 0x61"));
}

// Bytes have their values as ids but for these, which have none; 256: "ab", 257: "bb", 300:
// "<unk>".
BpeSpec ModelWithout(std::string_view missing) {
  BpeSpec spec = TinyModel({{"a", "b"}, {"b", "b"}});
  std::erase_if(spec.vocabulary, [&](const VocabularyEntry& entry) {
    return entry.id < 256 && missing.find(static_cast<char>(entry.id)) != std::string_view::npos;
  });
  spec.vocabulary.push_back({"<unk>", 300});
  return spec;
}

TEST(BpeModelTest, AByteWithoutATokenIsDroppedAndItsNeighboursMeet) {
  const BpeModel model = Create(ModelWithout("xy"));
  EXPECT_THAT(Encode(model, "x"), ElementsAre());
  EXPECT_THAT(Encode(model, "xyxyx"), ElementsAre());
  EXPECT_THAT(Encode(model, "axyb"), ElementsAre(256));
  EXPECT_THAT(Encode(model, "xbyyyybx"), ElementsAre(257));
  EXPECT_THAT(Encode(model, "zaz"), ElementsAre('z', 'a', 'z'));
  EXPECT_TRUE(model.drops_bytes());
}

TEST(BpeModelTest, AByteWithoutATokenBecomesTheUnknownOne) {
  BpeSpec spec = ModelWithout("xy");
  spec.unknown_token = "<unk>";
  const BpeModel model = Create(spec, {300});  // which may be special
  EXPECT_THAT(Encode(model, "x"), ElementsAre(300));
  EXPECT_THAT(Encode(model, "axybabxx"), ElementsAre('a', 300, 300, 'b', 256, 300, 300));
  EXPECT_FALSE(model.drops_bytes());
  spec.fuse_unknown = true;
  const BpeModel fused = Create(spec, {300});
  EXPECT_THAT(Encode(fused, "xyyx"), ElementsAre(300));
  EXPECT_THAT(Encode(fused, "axybabxx"), ElementsAre('a', 300, 'b', 256, 300));
  EXPECT_TRUE(fused.drops_bytes());
  // Merges may take the unknown token in.
  spec.vocabulary.push_back({"a<unk>", 301});
  spec.merges.push_back({"a", "<unk>"});
  EXPECT_THAT(Encode(Create(spec), "axxb"), ElementsAre(301, 'b'));
}

TEST(BpeModelTest, BytesThatTextsCannotHaveAreNoGap) {
  EXPECT_FALSE(Create(ModelWithout("\xC0\xC1\xF5\xFF")).drops_bytes());
  EXPECT_TRUE(Create(ModelWithout("\xF4")).drops_bytes());
  EXPECT_FALSE(Create(TinyModel({})).drops_bytes());
  // An unknown token without use need not be there.
  BpeSpec spec = TinyModel({});
  spec.unknown_token = "";
  EXPECT_FALSE(Create(spec).drops_bytes());
}

TEST(BpeModelTest, TokensHaveBytes) {
  BpeSpec spec = TinyModel({{"\u0120", "a"}});
  spec.vocabulary.push_back({"<special \u2581>", 260});
  const BpeModel model = Create(spec);
  EXPECT_EQ(model.token_bytes()[256], " a");
  EXPECT_EQ(model.token_bytes()[258], "");
  EXPECT_EQ(model.token_bytes()[260], "<special \u2581>");
  EXPECT_EQ(model.IdOf("\u0120a"), 256);
  EXPECT_EQ(model.IdOf(" a"), -1);
  EXPECT_TRUE(model.HasId(260));
  EXPECT_FALSE(model.HasId(258));
  EXPECT_FALSE(model.HasId(-1));
}

// Merges the best pair of the whole list, again and again.
std::vector<int32_t> EncodeNaively(const BpeSpec& spec, std::string_view piece) {
  std::map<std::string, int32_t> id_of;
  for (const VocabularyEntry& entry : spec.vocabulary) id_of[entry.token] = entry.id;
  std::vector<std::string> symbols;
  for (const char c : piece) symbols.emplace_back(1, c);
  for (;;) {
    size_t best_rank = spec.merges.size();
    size_t best_index = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (spec.merges[rank].left == symbols[i] && spec.merges[rank].right == symbols[i + 1]) {
          best_rank = rank;
          best_index = i;
        }
      }
    }
    if (best_rank == spec.merges.size()) break;
    symbols[best_index] += symbols[best_index + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best_index) + 1);
  }
  std::vector<int32_t> ids;
  for (const std::string& symbol : symbols) ids.push_back(id_of.at(symbol));
  return ids;
}

TEST(BpeModelTest, AgreesWithANaiveModel) {
  const uint32_t seed = 20260722;
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 40; ++round) {
    BpeSpec spec = TinyModel({});
    std::vector<std::string> tokens = {"a", "b", "c", "d"};
    std::map<std::string, bool> known;
    while (spec.merges.size() < 30) {
      const std::string left = tokens[random() % tokens.size()];
      const std::string right = tokens[random() % tokens.size()];
      if (known[left + " " + right]) continue;
      known[left + " " + right] = true;
      spec.merges.push_back({left, right});
      if (std::exchange(known[left + right], true)) continue;
      tokens.push_back(left + right);
      spec.vocabulary.push_back({left + right, static_cast<int32_t>(spec.vocabulary.size())});
    }
    const BpeModel model = Create(spec);
    for (int i = 0; i < 50; ++i) {
      std::string piece;
      for (size_t length = random() % 40; length > 0; --length) {
        piece.push_back(static_cast<char>('a' + random() % 4));
      }
      ASSERT_EQ(Encode(model, piece), EncodeNaively(spec, piece)) << piece << " in round " << round;
    }
  }
}

TEST(BpeModelTest, ALongPieceTakesNoQuadraticTime) {
  const BpeModel model =
      Create(TinyModel({{"a", "a"}, {"aa", "aa"}, {"aaaa", "aaaa"}, {"b", "a"}}));
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(Encode(model, std::string(1 << 20, 'a')).size(), size_t{1 << 20} / 8);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

// The bytes have the ids 0 to 255; characters and what merges make follow.
BpeSpec FallbackModel(std::initializer_list<const char*> characters,
                      std::initializer_list<std::pair<const char*, const char*>> merges) {
  BpeSpec spec;
  spec.byte_fallback = true;
  for (int byte = 0; byte < 256; ++byte) {
    spec.vocabulary.push_back({absl::StrFormat("<0x%02X>", byte), byte});
  }
  const auto add = [&spec](std::string token) {
    spec.vocabulary.push_back({std::move(token), static_cast<int32_t>(spec.vocabulary.size())});
  };
  for (const char* character : characters) add(character);
  for (const auto& [left, right] : merges) {
    add(absl::StrCat(left, right));
    spec.merges.push_back({left, right});
  }
  return spec;
}

TEST(BpeModelTest, CharactersThatTheVocabularyLacksBecomeBytes) {
  // 256: "a", 257: the mark, 258: "é", 259: mark and a, 260: é and a
  const BpeModel model =
      Create(FallbackModel({"a", "\u2581", "\u00e9"}, {{"\u2581", "a"}, {"\u00e9", "a"}}));
  EXPECT_TRUE(model.byte_fallback());
  EXPECT_FALSE(model.drops_bytes());
  EXPECT_THAT(Encode(model, "\u2581a\u00e9a"), ElementsAre(259, 260));
  EXPECT_THAT(Encode(model, "b\u00e8a\u20ac"), ElementsAre('b', 0xC3, 0xA8, 256, 0xE2, 0x82, 0xAC));
  EXPECT_EQ(model.token_bytes()[0x0A], "\n");
  EXPECT_EQ(model.token_bytes()[259], " a");
  EXPECT_EQ(model.token_bytes()[258], "\u00e9");
  EXPECT_EQ(model.BytesOf("<0xzz>"), "<0xzz>");
}

TEST(BpeModelTest, CutsBeforeMarksOnlyWhereNoTokenHoldsOneBehindAnother) {
  EXPECT_TRUE(Create(FallbackModel({"a", "\u2581"}, {{"\u2581", "\u2581"}, {"\u2581", "a"}}))
                  .may_cut_before_marks());
  EXPECT_FALSE(Create(FallbackModel({"a", "\u2581"}, {{"a", "\u2581"}})).may_cut_before_marks());
  EXPECT_FALSE(Create(TinyModel({{"a", "b"}})).may_cut_before_marks());
  BpeSpec whole = FallbackModel({"a", "\u2581"}, {{"\u2581", "a"}});
  whole.ignore_merges = true;
  EXPECT_FALSE(Create(whole).may_cut_before_marks());
  EXPECT_THAT(Encode(Create(whole), "\u2581a"), ElementsAre(258));
}

TEST(BpeModelTest, NoCharactersBecomeASpecialToken) {
  // "ab" would be special: the merge that makes it is left out.
  EXPECT_THAT(Encode(Create(FallbackModel({"a", "b"}, {{"a", "b"}}), {258}), "ab"),
              ElementsAre(256, 257));
  EXPECT_THAT(Encode(Create(FallbackModel({"a"}, {}), {256}), "a"), ElementsAre('a'));
  BpeSpec spec = FallbackModel({}, {});
  EXPECT_THAT(CreateError(spec, {7}), HasSubstr("<0x07> is a special token"));
  spec.vocabulary.erase(spec.vocabulary.begin() + 9);
  EXPECT_THAT(CreateError(spec), HasSubstr("<0x09> is missing"));
}

}  // namespace
}  // namespace retroinfer
