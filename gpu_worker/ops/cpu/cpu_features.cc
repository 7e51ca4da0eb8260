#include "gpu_worker/ops/cpu/cpu_features.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace retroinfer::cpu {

#if defined(__x86_64__)
namespace {

// From <asm/prctl.h>, which older systems lack the names of.
constexpr long kArchReqXcompPerm = 0x1023;
constexpr long kXfeatureXtiledata = 18;

bool DetectAmxBf16() {
  constexpr unsigned kAmxBf16 = 1u << 22;
  constexpr unsigned kAmxTile = 1u << 24;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  if ((d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
}

bool DetectAvx512Bf16() {
  constexpr unsigned kAvx512Bf16 = 1u << 5;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) == 0) return false;
  return (a & kAvx512Bf16) != 0 && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl");
}

}  // namespace

bool HasAvx512Bf16() {
  static const bool has = DetectAvx512Bf16();
  return has;
}

bool HasAmxBf16() {
  static const bool has = HasAvx512Bf16() && DetectAmxBf16();
  return has;
}
#else
bool HasAvx512Bf16() { return false; }
bool HasAmxBf16() { return false; }
#endif

}  // namespace retroinfer::cpu
