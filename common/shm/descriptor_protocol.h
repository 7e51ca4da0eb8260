// What a worker and the store say on the descriptor socket, as messages of FdChannel:
//
//   TYPE       DIRECTION        PAYLOAD                   DESCRIPTORS
//   kHello     worker -> store  16-byte attach token      none: asks for the memory
//   kHandBack  worker -> store  16-byte attach token      arena, data planes: gives them back
//   kWelcome   store -> worker  none                      arena, data planes; none after kHandBack
//   kRefused   store -> worker  text for people           none; the store then closes
//
// There are as many data planes as the worker asked for, by rank.
//
// After kWelcome the connection carries nothing more. It is the lease: the store frees everything
// the worker holds when it ends.
#pragma once

#include <cstddef>
#include <cstdint>

namespace retroinfer {

enum class DescriptorMessage : uint32_t { kHello = 1, kHandBack = 2, kWelcome = 3, kRefused = 4 };

inline constexpr size_t kAttachTokenBytes = 16;

}  // namespace retroinfer
