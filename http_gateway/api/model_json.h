// The answers about models, as clients of OpenAI's and of Anthropic's API read them: each finds the
// members that it knows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace retroinfer::gateway {

// `created`: seconds since 1970.
std::string ModelJson(const std::string& name, int64_t created, int64_t max_model_len);
// REQUIRES: there is a name.
std::string ModelListJson(const std::vector<std::string>& names, int64_t created,
                          int64_t max_model_len);

}  // namespace retroinfer::gateway
