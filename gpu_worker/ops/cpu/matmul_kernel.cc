#include "gpu_worker/ops/cpu/matmul_kernel.h"

#include <omp.h>

#include <array>
#include <atomic>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/log/check.h"

namespace retroinfer::cpu {
namespace {

using dnnl::memory;

// Makes oneDNN use the calling thread only, for the length of a scope. Its OpenMP threads are never
// started: they would fight with the stream's threads for the cores.
class SingleThreadScope {
 public:
  SingleThreadScope() : saved_(omp_get_max_threads()) {
    if (saved_ != 1) omp_set_num_threads(1);
  }
  SingleThreadScope(const SingleThreadScope&) = delete;
  SingleThreadScope& operator=(const SingleThreadScope&) = delete;
  ~SingleThreadScope() {
    if (saved_ != 1) omp_set_num_threads(saved_);
  }

 private:
  const int saved_;
};

const dnnl::engine& Engine() {
  static const auto& engine = *new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

dnnl::stream& StreamOfThisThread() {
  thread_local dnnl::stream stream(Engine());
  return stream;
}

memory::data_type DnnlType(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return memory::data_type::f32;
    case DType::kBf16:
      return memory::data_type::bf16;
    case DType::kF16:
      return memory::data_type::f16;
    case DType::kInt8:
      break;
  }
  return memory::data_type::undef;
}

absl::Status DnnlStatus(const dnnl::error& error, std::string what) {
  const std::string message =
      absl::StrCat(what, ": oneDNN status ", error.status, ", ", error.what());
  return error.status == dnnl_out_of_memory ? absl::ResourceExhaustedError(message)
                                            : absl::InternalError(message);
}

dnnl::matmul::primitive_desc Describe(int64_t rows, int64_t n, int64_t k, DType dtype,
                                      const memory::desc& weights) {
  const memory::desc in({rows, k}, DnnlType(dtype), memory::format_tag::ab);
  const memory::desc out({rows, n}, memory::data_type::f32, memory::format_tag::ab);
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
#if DNNL_VERSION_MAJOR >= 3
  return {Engine(), in, weights, out, attributes};
#else
  return {dnnl::matmul::desc(in, weights, out), attributes, Engine()};
#endif
}

using Key = std::tuple<int64_t, int64_t, int64_t, DType>;  // rows, n, k, dtype

struct Cache {
  absl::Mutex mutex;
  std::map<Key, std::shared_ptr<const MatmulKernel>> kernels ABSL_GUARDED_BY(mutex);
  std::map<std::pair<const MatmulKernel*, int64_t>, std::shared_ptr<const MatmulKernel>> likes
      ABSL_GUARDED_BY(mutex);
};

Cache& GlobalCache() {
  static auto& cache = *new Cache;
  return cache;
}

}  // namespace

// A thread's memory objects, whose data handles it sets for each call.
struct MatmulKernel::ThreadState {
  memory in;
  memory out;
  memory scratchpad;
  const float* result;  // data of `out`
};

MatmulKernel::MatmulKernel(int64_t rows, int64_t n, int64_t k, DType dtype,
                           dnnl::matmul::primitive_desc primitive_desc)
    : rows_(rows),
      n_(n),
      k_(k),
      dtype_(dtype),
      id_([] {
        static std::atomic<size_t> next_id = 0;
        return next_id.fetch_add(1);
      }()),
      primitive_desc_(std::move(primitive_desc)),
      primitive_(primitive_desc_) {}

absl::StatusOr<std::shared_ptr<const MatmulKernel>> MatmulKernel::Get(int64_t rows, int64_t n,
                                                                      int64_t k, DType dtype) {
  Cache& cache = GlobalCache();
  absl::MutexLock lock(&cache.mutex);
  std::shared_ptr<const MatmulKernel>& kernel = cache.kernels[Key(rows, n, k, dtype)];
  if (kernel != nullptr) return kernel;
  const SingleThreadScope single_thread;
  try {
    const memory::desc any({k, n}, DnnlType(dtype), memory::format_tag::any);
    kernel.reset(new MatmulKernel(rows, n, k, dtype, Describe(rows, n, k, dtype, any)));
  } catch (const dnnl::error& error) {
    return DnnlStatus(error, absl::StrCat("matrix product [", rows, ", ", k, "] x [", k, ", ", n,
                                          "] of ", std::string(DTypeName(dtype))));
  }
  return kernel;
}

std::shared_ptr<const MatmulKernel> MatmulKernel::GetLike(
    const std::shared_ptr<const MatmulKernel>& like, int64_t rows) {
  Cache& cache = GlobalCache();
  absl::MutexLock lock(&cache.mutex);
  std::shared_ptr<const MatmulKernel>& kernel = cache.likes[{like.get(), rows}];
  if (kernel != nullptr) return kernel;
  const SingleThreadScope single_thread;
  try {
    kernel.reset(new MatmulKernel(
        rows, like->n_, like->k_, like->dtype_,
        Describe(rows, like->n_, like->k_, like->dtype_, like->primitive_desc_.weights_desc())));
  } catch (const dnnl::error&) {
    kernel = like;
  }
  return kernel;
}

absl::StatusOr<memory> MatmulKernel::Pack(DType source_dtype, const std::byte* weights,
                                          int64_t row_stride, std::byte* packed) const {
  const SingleThreadScope single_thread;
  try {
    const memory::desc source_desc({k_, n_}, DnnlType(source_dtype), memory::dims{1, row_stride});
    memory source(source_desc, Engine(), const_cast<std::byte*>(weights));
    memory target(primitive_desc_.weights_desc(), Engine(), packed);
    dnnl::reorder(source, target).execute(StreamOfThisThread(), source, target);
    StreamOfThisThread().wait();
    return target;
  } catch (const dnnl::error& error) {
    return DnnlStatus(error, absl::StrCat("packing weights [", n_, ", ", k_, "]"));
  }
}

MatmulKernel::ThreadState& MatmulKernel::StateOfThisThread() const {
  thread_local std::vector<std::unique_ptr<ThreadState>> states;
  if (states.size() <= id_) states.resize(id_ + 1);
  if (states[id_] == nullptr) {
    auto state = std::make_unique<ThreadState>();
    state->in = memory(primitive_desc_.src_desc(), Engine(), DNNL_MEMORY_NONE);
    state->out = memory(primitive_desc_.dst_desc(), Engine());
    state->scratchpad = memory(primitive_desc_.scratchpad_desc(), Engine());
    state->result = static_cast<const float*>(state->out.get_data_handle());
    states[id_] = std::move(state);
  }
  return *states[id_];
}

const float* MatmulKernel::Run(const std::byte* in, const memory& weights) const {
  const SingleThreadScope single_thread;
  ThreadState& state = StateOfThisThread();
  state.in.set_data_handle(const_cast<std::byte*>(in));
  // The C interface: the C++ one builds a hash map and a vector for each call.
  const std::array<dnnl_exec_arg_t, 4> args = {{{DNNL_ARG_SRC, state.in.get()},
                                                {DNNL_ARG_WEIGHTS, weights.get()},
                                                {DNNL_ARG_DST, state.out.get()},
                                                {DNNL_ARG_SCRATCHPAD, state.scratchpad.get()}}};
  const dnnl_status_t status = dnnl_primitive_execute(primitive_.get(), StreamOfThisThread().get(),
                                                      static_cast<int>(args.size()), args.data());
  RI_CHECK(status == dnnl_success);
  return state.result;
}

}  // namespace retroinfer::cpu
