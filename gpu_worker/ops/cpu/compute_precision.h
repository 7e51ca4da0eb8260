// In which precision the CPU backend multiplies matrices.
#pragma once

namespace retroinfer {

enum class ComputePrecision {
  kF32,   // exact products, f32 sums: follows a reference to about 1e-6
  kBf16,  // operands rounded to bf16, f32 sums, where the processor has instructions for it and the
          // weights are bf16 or f16; f32 otherwise
};

}  // namespace retroinfer
