// Names what a request is about, so that a balancer sends requests about one document to the node
// that has read it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "retroinfer/generation/v1/generation.pb.h"

namespace retroinfer::common {

// The metadata key that balancers hash (deploy/fleet).
inline constexpr char kContextAffinityKey[] = "x-retroinfer-context";

// How much of a prompt's beginning counts. A long document is longer than this, so that a question
// behind the document does not count. (No usual text has fewer than two bytes a token: a document
// with a segment, of 8192 tokens, has more bytes.) Of a conversation, only the messages before the
// first answer count, so that all turns of a short one have the same name, too.
inline constexpr size_t kContextAffinityBytes = 16 << 10;

// Returns 16 lower-case hexadecimal digits: the beginning of the SHA-256 of the first
// kContextAffinityBytes, so that any client can do the same (`head -c 16384 PROMPT | sha256sum |
// head -c 16`).
std::string ContextAffinity(std::string_view beginning);

// The same of a request's text; of its messages before the first of role "assistant", each as role,
// line break, content, line break; of its token ids, 4 bytes each, the lowest first. The cache salt
// does not count: two tenants that ask about one document may be sent to the same node.
std::string ContextAffinity(const generation::v1::GenerateRequest& request);
std::string ContextAffinity(
    const generation::v1::ScoreRequest& request);  // its continuations do not count

// Returns INVALID_ARGUMENT unless `name` may stand for a context: 1 to 128 characters of
// [A-Za-z0-9._:-].
absl::Status CheckContextAffinity(std::string_view name);

}  // namespace retroinfer::common
