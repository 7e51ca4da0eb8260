// Asks a server of HTTP on this machine whether it answers.
#pragma once

#include <string>

#include "absl/time/time.h"

namespace retroinfer::client {

// Whether HEAD / at `address` ("unix:" and a path) has an answer within `timeout`, whatever
// its status: a gateway serves also while its worker does not.
bool AnswersHttp(const std::string& address, absl::Duration timeout);

}  // namespace retroinfer::client
