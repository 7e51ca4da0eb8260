// Where the tokens of sequences are drawn.
#pragma once

#include <cstdint>

namespace retroinfer {

enum class Drawing : uint8_t {
  kHere,
  // What this executor draws means nothing: it is fed tokens, and told which rows have counted.
  kElsewhere,
};

}  // namespace retroinfer
