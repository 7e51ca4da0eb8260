// Instruction sets that are chosen at run time, beyond what Highway dispatches.
#pragma once

namespace retroinfer::cpu {

// AVX-512 with products of bf16 pairs (vdpbf16ps).
bool HasAvx512Bf16();

// AMX tiles with bf16 products, and the system's permission to use them (asked for once).
bool HasAmxBf16();

}  // namespace retroinfer::cpu
