// A part of a tensor of a checkpoint: some of its rows, of each some columns. What is read of the
// file is what the part needs, for columns of rows all that lies between the first and the last.
#pragma once

#include <vector>

#include "gpu_worker/model/host_tensor.h"
#include "gpu_worker/ops/collective/tensor_parallel.h"

namespace retroinfer {

// Rows `rows` of `tensor`, [rows, cols] or [rows], one share below the other, and of each the
// columns `cols`, side by side; of a vector `cols` is {0, 1}. The part points into the tensor's
// file. Empty shares are left out.
//
// REQUIRES: shares lie within the tensor, in order, and are not all empty.
HostTensor CutTensor(const HostTensor& tensor, const std::vector<Share>& rows,
                     const std::vector<Share>& cols);

// A tensor of this type and shape that is zeros, none of which are stored.
HostTensor ZerosLike(const HostTensor& tensor);

}  // namespace retroinfer
