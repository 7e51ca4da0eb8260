// The flags that say how to generate: shared by `generate` and `chat`.
#pragma once

#include "common/config/settings.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer::client {

// Adds --policy, --max-tokens, --temperature and so on; each given one sets its field of
// `*request`. What is not given stays unset, so that the server's default holds.
//
// REQUIRES: `request` outlives the parsing.
void AddRequestFlags(common::Settings* settings, generation::v1::GenerateRequest* request);

}  // namespace retroinfer::client
