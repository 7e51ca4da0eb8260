#include "tests/support/allocation_count.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

std::atomic<int64_t> num_allocations = 0;

}  // namespace

// All forms that are used: what one of the runtime's allocated must not come to free() below.
void* operator new(size_t bytes, const std::nothrow_t&) noexcept {
  num_allocations.fetch_add(1, std::memory_order_relaxed);
  return std::malloc(bytes == 0 ? 1 : bytes);
}
void* operator new(size_t bytes) {
  void* memory = operator new(bytes, std::nothrow);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace retroinfer::test_support {

int64_t NumAllocations() { return num_allocations.load(std::memory_order_relaxed); }

}  // namespace retroinfer::test_support
