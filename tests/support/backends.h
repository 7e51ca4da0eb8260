// The backends that this machine can run, for test suites that are parameterised over them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gpu_worker/device/device.h"
#include "gpu_worker/ops/backend/ops.h"

namespace retroinfer::test_support {

// A device, its operations and a stream on it.
struct Backend {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<Stream> stream;      // compute
  std::unique_ptr<Stream> background;  // index construction
};

// How to make a backend, and how far its matrix products may be from exact ones.
struct BackendParam {
  std::string name;
  std::unique_ptr<Backend> (*create)();
  // Relative error of an operation that multiplies matrices: 2^-8 is one rounding of an operand to
  // bf16, 1e-5 a long f32 sum.
  double matmul_tolerance = 1e-5;
};

// For INSTANTIATE_TEST_SUITE_P(Backends, XTest, testing::ValuesIn(AvailableBackends()),
// BackendName)
std::vector<BackendParam> AvailableBackends();

// The KV formats that all operations of a backend have code for.
inline std::vector<KvFormat> KvFormatsOf(const Backend& backend) {
  std::vector<KvFormat> formats;
  for (const KvFormat& format : kKvFormats) {
    if (backend.ops->CheckKvFormat(format).ok()) formats.push_back(format);
  }
  return formats;
}

struct BackendNameFunctor {
  template <typename Info>
  std::string operator()(const Info& info) const {
    return info.param.name;
  }
};
inline constexpr BackendNameFunctor BackendName;

}  // namespace retroinfer::test_support
