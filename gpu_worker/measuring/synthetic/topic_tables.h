// Synthetic contexts for stress: keys in topics, and queries whose cosine from step to step is
// given.
//
// Topics are directions with some spread; a context stays with a topic for a dozen tokens. Every
// layer begins elsewhere in the same tokens. Queries are an AR(1) process towards topics.
#pragma once

#include "gpu_worker/measuring/synthetic/synthetic_tables.h"

namespace retroinfer {

SyntheticSizes TopicSizes(const SyntheticShape& shape);
// REQUIRES: shape.overlap has a value.
SyntheticTables MakeTopicTables(const SyntheticShape& shape);

}  // namespace retroinfer
