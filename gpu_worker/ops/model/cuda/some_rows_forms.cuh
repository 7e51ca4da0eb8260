// Which kernel takes how many rows of a form.
#pragma once

#include <type_traits>

#include "gpu_worker/ops/model/cuda/cluster_gemm.cuh"
#include "gpu_worker/ops/model/cuda/some_rows_gemm.h"
#include "gpu_worker/ops/model/cuda/wide_gemm.cuh"

namespace retroinfer::cuda {

// Calls body with the smallest number of row tiles that there are kernels for and that is enough,
// as a std::integral_constant. More than kMostRows are taken in blocks of them.
template <int kMostRows, typename Body>
auto WithRowTiles(int64_t rows, const Body& body) {
  if constexpr (kMostRows > 32) {
    if (rows > 48) return body(std::integral_constant<int, 8>());
    if (rows > 32) return body(std::integral_constant<int, 6>());
  }
  return body(std::integral_constant<int, 4>());
}

// kMostRows, kMostGatedRows: from which on the kernels for few rows took less time on an H100. All
// rows if they are kAllRows.
inline constexpr int kAllRows = 1 << 30;
template <typename Form, int kMostRows, int kMostGatedRows>
struct SomeRowsOf {
  // Of so many features that 14 warps of a block take a tile each, as 28,672 are 128 blocks.
  template <int kRowTiles, bool kGated>
  using Wide = WideGemm<Form, WideShape<14, kRowTiles, kGated>>;
  // Of two blocks, which leave no multiprocessor out. Eight warps of two tiles hold 32 rows of
  // 4,096 columns in shared memory; more rows fill the registers of 16 warps with one.
  template <int kRowTiles>
  using Narrow =
      ClusterGemm<Form, std::conditional_t<kRowTiles <= 4, ClusterShape<2, 8, 2, kRowTiles, 4>,
                                           ClusterShape<2, 16, 1, kRowTiles, 2>>>;

  static bool Prepare() {
    bool takes_all = true;
    for (const int64_t rows : {32, 48, 64}) {
      const bool takes = WithRowTiles<kMostRows>(rows, [](auto row_tiles) {
        constexpr int kRowTiles = decltype(row_tiles)::value;
        return Wide<kRowTiles, false>::BlocksAtOnce() > 0 &&
               Wide<kRowTiles, true>::BlocksAtOnce() > 0 && Narrow<kRowTiles>::ClustersAtOnce() > 0;
      });
      takes_all = takes_all && takes;
    }
    return takes_all;
  }

  static bool Takes(const SkinnyGemmLaunch& gemm) {
    return gemm.gated ? gemm.rows <= kMostGatedRows && AreMany(gemm) : gemm.rows <= kMostRows;
  }

  // Whether features are enough for most of the GPU's blocks, each of which takes all of k.
  static bool AreMany(const SkinnyGemmLaunch& gemm) {
    const auto fill = [&gemm](auto kernel) {
      return decltype(kernel)::Groups(gemm) * 5 >= decltype(kernel)::BlocksAtOnce() * 3;
    };
    return gemm.gated ? fill(Wide<4, true>()) : fill(Wide<4, false>());
  }

  static cudaError_t Launch(const SkinnyGemmLaunch& gemm, const GroupedWeight& weight,
                            cudaStream_t stream) {
    return WithRowTiles<kMostRows>(gemm.rows, [&](auto row_tiles) {
      constexpr int kRowTiles = decltype(row_tiles)::value;
      if (gemm.gated) return Wide<kRowTiles, true>::Launch(gemm, weight, stream);
      if (AreMany(gemm)) return Wide<kRowTiles, false>::Launch(gemm, weight, stream);
      return Narrow<kRowTiles>::Launch(gemm, weight, stream);
    });
  }

  static constexpr SomeRowsKernels kKernels = {&Prepare, &Takes, &Launch};
};

}  // namespace retroinfer::cuda
