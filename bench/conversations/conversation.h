// Holds one conversation with an engine, by token ids, and counts what is recomputed of it.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/conversations/conversation_kinds.h"
#include "gpu_worker/engine/engine.h"
#include "gpu_worker/kv/attention_settings.h"

namespace retroinfer::bench {

struct ConversationTurn {
  int64_t prompt_tokens = 0;
  int64_t recomputed = 0;  // of them, that were not found cached
  // Of them, that no turn before has computed behind the same tokens; and where only what prefill
  // computed counts, so that answers are computed again.
  int64_t fewest = 0;
  int64_t fewest_exact = 0;
  double first_token_s = 0;  // seconds from submission to the first token
};

struct ConversationSettings {
  AttentionSettings attention;
  KvReuse reuse = KvReuse::kExact;
  int32_t vocab_size = 0;
  uint64_t seed = 1;
};

// Each turn begins when the engine has let go of what the last one held. Conversations of other
// kinds, or that reuse other KV, have other cache salts, so that none finds another one's. Ends the
// program where a turn fails.
std::vector<ConversationTurn> HoldConversation(Engine& engine, const ConversationKind& kind,
                                               const ConversationSettings& settings);

}  // namespace retroinfer::bench
