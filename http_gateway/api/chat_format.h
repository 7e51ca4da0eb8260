// What a chat template tells of a model's habits, seen in prompts that it renders.
#pragma once

#include <optional>

#include "http_gateway/api/tool_form.h"

namespace retroinfer::gateway {

// How a rendered prompt leaves the model's thoughts.
enum class ThinkingOpening {
  kUnknown,  // it has no tag at its end
  kOpened,   // it ends with <think>: the answer begins with thoughts
  kClosed,   // it ends with </think>: there are none
};

struct ChatFormat {
  ToolForm tool_form = ToolForm::kNone;
  // By enable_thinking: not given, false, true.
  ThinkingOpening thinking[3] = {};

  ThinkingOpening Thinking(std::optional<bool> enable_thinking) const {
    return thinking[enable_thinking.has_value() ? 1 + *enable_thinking : 0];
  }
  // Whether the answer may begin with thoughts, between tags that the model writes itself. A
  // template that never has a tag is of a model without thoughts.
  bool MayThink(std::optional<bool> enable_thinking) const {
    bool has_tags = false;
    for (const ThinkingOpening opening : thinking) {
      has_tags = has_tags || opening != ThinkingOpening::kUnknown;
    }
    return has_tags && Thinking(enable_thinking) != ThinkingOpening::kClosed;
  }
};

}  // namespace retroinfer::gateway
