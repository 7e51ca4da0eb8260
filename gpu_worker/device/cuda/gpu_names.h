// The GPUs of the machine, as far as CUDA sees them.
#pragma once

#include <string>
#include <vector>

namespace retroinfer::cuda {

// Their names, by number; empty without a driver or a GPU. None of them is taken.
std::vector<std::string> GpuNames();

}  // namespace retroinfer::cuda
