// What a constraint may cost before it is refused.
#pragma once

#include <cstddef>
#include <cstdint>

namespace retroinfer::constraint {

struct Limits {
  // --- While a constraint is compiled; what is over them is refused with the number.
  size_t spec_bytes_max = size_t{256} << 10;  // of a text, or of all choices together
  size_t choices_max = 1024;
  size_t nesting_max = 64;                     // of groups, schemas and values in each other
  size_t nodes_max = size_t{1} << 18;          // of the compiled network
  size_t schema_visits_max = size_t{1} << 16;  // schemas that are read, again for each combination
  // --- While a text is written. Deeper nesting is not allowed by the masks, which leave a way to
  // the end of the text at any time.
  size_t stack_depth_max = 256;  // calls of rules in each other
  // Positions in the network at the same time. A byte that leads to more of them is not allowed.
  size_t positions_max = 4096;
  size_t fill_steps_max = size_t{1} << 26;  // positions that are visited for one mask
  // --- Memory.
  size_t automaton_bytes_max = size_t{16} << 20;  // of the states that a constraint remembers
  size_t mask_bytes_max = size_t{8} << 20;        // of the masks that a constraint remembers
  size_t cache_bytes_max = size_t{256} << 20;     // of all constraints that a compiler remembers
  size_t cache_constraints_max = 256;
};

}  // namespace retroinfer::constraint
