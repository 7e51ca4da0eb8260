// A library that a CUDA program loads by itself and that writes when each kernel, copy and fill of
// the device began and ended, by CUPTI's activity records. No program has to be built for it:
//
//   CUDA_INJECTION64_PATH=$PWD/libkernel_times.so KERNEL_TIMES=FILE PROGRAM ...
//
//   bench/cuda/kernel_times.py FILE
//
// FILE gets a line for each: begin_ns, duration_ns, stream, name, tab-separated, in no order.
// Kernels of recorded graphs are recorded one by one, which takes about a microsecond each, so a
// traced step is longer than an untraced one; kernels that begin before the one before them has
// ended overlap.
#include <cupti.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace {

constexpr size_t kBufferBytes = size_t{8} << 20;

std::FILE* g_out = nullptr;
std::mutex g_mutex;  // guards writes to g_out: CUPTI hands buffers over on threads of its own

void CUPTIAPI BufferRequested(uint8_t** buffer, size_t* size, size_t* max_records) {
  *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *max_records = 0;  // as many as fit
}

void Write(uint64_t begin, uint64_t end, uint32_t stream, const char* name) {
  std::fprintf(g_out, "%llu\t%llu\t%u\t%s\n", static_cast<unsigned long long>(begin),
               static_cast<unsigned long long>(end - begin), stream, name);
}

void WriteRecord(const CUpti_Activity* record) {
  switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
      const auto* kernel = reinterpret_cast<const CUpti_ActivityKernel10*>(record);
      Write(kernel->start, kernel->end, kernel->streamId, kernel->name);
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
      const auto* copy = reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
      constexpr const char* kNames[] = {"copy", "copy host to device", "copy device to host"};
      Write(copy->start, copy->end, copy->streamId,
            kNames[copy->copyKind <= CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? copy->copyKind : 0]);
      break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
      const auto* fill = reinterpret_cast<const CUpti_ActivityMemset4*>(record);
      Write(fill->start, fill->end, fill->streamId, "fill");
      break;
    }
    default:
      break;
  }
}

void CUPTIAPI BufferCompleted(CUcontext /*context*/, uint32_t /*stream*/, uint8_t* buffer,
                              size_t /*size*/, size_t valid_size) {
  CUpti_Activity* record = nullptr;
  {
    const std::lock_guard lock(g_mutex);
    while (cuptiActivityGetNextRecord(buffer, valid_size, &record) == CUPTI_SUCCESS) {
      WriteRecord(record);
    }
  }
  std::free(buffer);
}

void Finish() {
  (void)cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
  size_t lost = 0;
  (void)cuptiActivityGetNumDroppedRecords(nullptr, 0, &lost);
  if (lost > 0) std::fprintf(stderr, "kernel_times: %zu records were lost\n", lost);
  const std::lock_guard lock(g_mutex);
  std::fflush(g_out);
}

}  // namespace

// CUDA calls this when the program first uses the device.
extern "C" __attribute__((visibility("default"))) int InitializeInjection() {
  const char* path = std::getenv("KERNEL_TIMES");
  if (path == nullptr || (g_out = std::fopen(path, "w")) == nullptr) {
    std::fprintf(stderr, "kernel_times: KERNEL_TIMES must name a file that can be written\n");
    return 0;
  }
  bool enabled = cuptiActivityRegisterCallbacks(BufferRequested, BufferCompleted) == CUPTI_SUCCESS;
  for (const CUpti_ActivityKind kind : {CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                        CUPTI_ACTIVITY_KIND_MEMCPY, CUPTI_ACTIVITY_KIND_MEMSET}) {
    enabled = enabled && cuptiActivityEnable(kind) == CUPTI_SUCCESS;
  }
  if (!enabled) std::fprintf(stderr, "kernel_times: CUPTI records nothing on this machine\n");
  std::atexit(Finish);
  return enabled ? 1 : 0;
}
