// A piece of what a model wrote.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace retroinfer::gateway {

// Pieces come in the order in which the model wrote them. A call is one kCallBegin, any number of
// kCallArguments and one kCallEnd; nothing else comes between them.
struct AnswerPiece {
  enum class Kind {
    kReasoning,
    kText,
    kCallBegin,      // `text` is the function's name
    kCallArguments,  // the next bytes of the arguments' JSON text
    kCallEnd,        // without text
  };
  Kind kind = Kind::kText;
  std::string text;

  bool operator==(const AnswerPiece&) const = default;
};

// Appends `text` to the last piece, where that is of the same kind, or as a new one.
inline void AppendPiece(AnswerPiece::Kind kind, std::string_view text,
                        std::vector<AnswerPiece>* pieces) {
  if (text.empty()) return;
  if (!pieces->empty() && pieces->back().kind == kind) {
    pieces->back().text.append(text);
  } else {
    pieces->push_back({kind, std::string(text)});
  }
}

}  // namespace retroinfer::gateway
