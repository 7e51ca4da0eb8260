#include "gpu_worker/ops/cpu/cluster_products.h"

#include <omp.h>

namespace retroinfer::cpu {
namespace {

using MemoryDesc = dnnl::memory::desc;

int UseOneThread() {
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  return before;
}

dnnl::matmul MakeMatmul(const dnnl::engine& engine, const MemoryDesc& keys,
                        const MemoryDesc& centroids, const MemoryDesc& products) {
#if DNNL_VERSION_MAJOR >= 3
  return dnnl::matmul(dnnl::matmul::primitive_desc(engine, keys, centroids, products));
#else
  return dnnl::matmul(
      dnnl::matmul::primitive_desc(dnnl::matmul::desc(keys, centroids, products), engine));
#endif
}

}  // namespace

bool ClusterProducts::PrefersBf16() { return __builtin_cpu_supports("avx512bf16") != 0; }

ClusterProducts::ClusterProducts(DType dtype, int64_t num_keys, int64_t num_clusters,
                                 int64_t head_dim)
    : num_threads_before_(UseOneThread()), engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
  using Type = dnnl::memory::data_type;
  using Tag = dnnl::memory::format_tag;
  const Type type = dtype == DType::kF32 ? Type::f32 : Type::bf16;
  const MemoryDesc keys({num_keys, head_dim}, type, Tag::ab);
  const MemoryDesc centroids({head_dim, num_clusters}, type, Tag::ba);  // transposed in place
  const MemoryDesc products({num_keys, num_clusters}, Type::f32, Tag::ab);
  matmul_ = MakeMatmul(engine_, keys, centroids, products);
  keys_ = dnnl::memory(keys, engine_, nullptr);
  centroids_ = dnnl::memory(centroids, engine_, nullptr);
  products_ = dnnl::memory(products, engine_, nullptr);
}

ClusterProducts::~ClusterProducts() { omp_set_num_threads(num_threads_before_); }

void ClusterProducts::Compute(const std::byte* keys, const std::byte* centroids, float* products) {
  keys_.set_data_handle(const_cast<std::byte*>(keys));
  centroids_.set_data_handle(const_cast<std::byte*>(centroids));
  products_.set_data_handle(products);
  matmul_.execute(
      stream_, {{DNNL_ARG_SRC, keys_}, {DNNL_ARG_WEIGHTS, centroids_}, {DNNL_ARG_DST, products_}});
  stream_.wait();
}

}  // namespace retroinfer::cpu
