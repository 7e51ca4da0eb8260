#include "gpu_worker/ops/cpu/thread_scratch.h"

#include <memory>
#include <new>

namespace retroinfer::cpu {
namespace {

constexpr std::align_val_t kAlignment{64};

struct Deleter {
  void operator()(std::byte* data) const { ::operator delete(data, kAlignment); }
};

struct Scratch {
  std::unique_ptr<std::byte, Deleter> data;
  size_t bytes = 0;
};

}  // namespace

std::byte* ThreadScratch(size_t bytes) {
  thread_local Scratch scratch;
  if (bytes > scratch.bytes) {
    scratch.data.reset();
    scratch.data.reset(static_cast<std::byte*>(::operator new(bytes, kAlignment)));
    scratch.bytes = bytes;
  }
  return scratch.data.get();
}

}  // namespace retroinfer::cpu
