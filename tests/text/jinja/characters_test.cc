#include "text/jinja/characters.h"

#include "tests/text/jinja/template_fixture.h"

namespace retroinfer::jinja {
namespace {

TEST(CharactersTest, Reading) {
  EXPECT_EQ(FirstCharacter("a").code, U'a');
  EXPECT_EQ(FirstCharacter("日x").length, 3u);
  EXPECT_EQ(LastCharacter("x日").code, U'日');
  EXPECT_EQ(CountCharacters("é日😀a"), 4u);
  EXPECT_EQ(OffsetOfCharacter("é日😀a", 2), 5u);
  EXPECT_EQ(OffsetOfCharacter("é", 9), 2u);
  EXPECT_TRUE(IsUtf8("é\uFFFD"));
  for (const char* const bad : {"\xFF", "a\xC3", "\xED\xA0\x80", "\xC0\x80", "\xF4\x90\x80\x80"}) {
    EXPECT_FALSE(IsUtf8(bad));
  }
}

TEST(CharactersTest, Kinds) {
  EXPECT_TRUE(IsSpace(0x1C) && IsSpace(0x85) && IsSpace(0x3000) && !IsSpace(0x200B));
  EXPECT_TRUE(IsAlpha(U'日') && !IsAlpha(U'1') && IsDecimal(U'٣') && !IsDecimal(U'²'));
  EXPECT_TRUE(IsUpper(U'É') && IsLower(U'é') && !IsLower(U'日'));
  EXPECT_TRUE(IsPrintable(U' ') && !IsPrintable(0xA0) && !IsPrintable(0x200B));
}

}  // namespace
}  // namespace retroinfer::jinja
