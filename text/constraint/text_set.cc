#include "text/constraint/text_set.h"

#include "common/log/check.h"

namespace retroinfer::constraint {

CodePointSet CharactersOf(TextSet set) {
  switch (set) {
    case TextSet::kJsonText:
      return CodePointSet{{0x20, 0x21}, {0x23, 0x5B}, {0x5D, 0x10FFFF}};
    case TextSet::kNoAngle:
      return CodePointSet{{'<', '<'}}.Complement();
    case TextSet::kNoBracket:
      return CodePointSet{{'[', '['}}.Complement();
  }
  RI_CHECK(false);
}

std::optional<TextSet> TextSetWithout(char32_t code) {
  if (code == U'<') return TextSet::kNoAngle;
  if (code == U'[') return TextSet::kNoBracket;
  if (!CharactersOf(TextSet::kJsonText).Contains(code)) return TextSet::kJsonText;
  return std::nullopt;
}

}  // namespace retroinfer::constraint
