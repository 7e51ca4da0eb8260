// What a template consists of.
#pragma once

#include <string>

#include "text/jinja/value.h"

namespace retroinfer::jinja {

struct Token {
  enum class Kind {
    kData,  // text outside of tags
    kOutputBegin,
    kOutputEnd,
    kBlockBegin,
    kBlockEnd,
    kName,
    kString,
    kInt,
    kFloat,
    kOperator,  // and punctuation
    kEnd,       // of the template
  };
  Kind kind;
  int line;
  std::string text;  // of a string: what it stands for
  Int number = 0;    // of a kInt
  double floating = 0;

  bool Is(Kind wanted, std::string_view wanted_text) const {
    return kind == wanted && text == wanted_text;
  }
};

}  // namespace retroinfer::jinja
