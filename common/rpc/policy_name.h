// What people call attention policies: the names of the API's enum without their prefix, in small
// letters. A policy that is added to the API has its name here at once.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer::common {

// Of every policy, in the order of the enum: "full", "wave", ...
std::vector<std::string> PolicyNames();
// The same as a list to read: "full, wave or other".
std::string PolicyNameList();
// Returns "" for ATTENTION_POLICY_UNSPECIFIED and for numbers that are in no enum.
std::string NameOfPolicy(generation::v1::AttentionPolicy policy);
// Returns nothing for names that no policy has.
std::optional<generation::v1::AttentionPolicy> PolicyNamed(std::string_view name);

}  // namespace retroinfer::common
