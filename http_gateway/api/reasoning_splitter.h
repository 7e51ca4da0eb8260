// Parts a model's thoughts from its answer.
#pragma once

#include <string>
#include <string_view>

namespace retroinfer::gateway {

// Text that begins with <think> (or that the prompt has begun so) is reasoning up to </think>, the
// rest is content. Line ends beside the tags belong to neither. A tag that comes in pieces is held
// back until it is clear what it is.
//
// Threads: one at a time.
class ReasoningSplitter {
 public:
  // `begins_inside`: the prompt ends with <think>.
  explicit ReasoningSplitter(bool begins_inside)
      : state_(begins_inside ? State::kThinking : State::kBegin), at_start_(begins_inside) {}

  struct Parts {
    std::string reasoning;
    std::string content;
  };
  Parts Append(std::string_view text);
  // What was held back: the text has ended.
  Parts Finish();

 private:
  enum class State { kBegin, kThinking, kAfter, kContent };

  void Step(bool ended, Parts* parts);

  State state_;
  bool at_start_;  // of the reasoning: line ends are left out
  std::string held_;
};

}  // namespace retroinfer::gateway
