// Names of calls.
#pragma once

#include <string>

#include "http_gateway/api/tool_form.h"

namespace retroinfer::gateway {

// Draws the id of a call. No two of a conversation are the same, whichever servers answered its
// turns. Where the templates of `form` take ids of nine letters and digits alone (Mistral) it has
// these, else "call_" and 24 of them: 29 characters, where clients take at most 40.
//
// Threads: any.
std::string DrawCallId(ToolForm form);

}  // namespace retroinfer::gateway
