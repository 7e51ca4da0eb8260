// Tells ThreadSanitizer what absl's mutexes order. The packaged library is not instrumented, so
// that without this every use of absl::Mutex looks like a race. Linked into each test of a tsan
// build: the definitions here come before the library's, which they call.
//
// The library evaluates a condition on whichever thread unlocks, which ThreadSanitizer would not
// see as holding the mutex: here a thread polls its condition itself.
#include <dlfcn.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/base/config.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

extern "C" {
void __tsan_acquire(void* address);
void __tsan_release(void* address);
}

namespace {

#define RI_STRING_(x) #x
#define RI_STRING(x) RI_STRING_(x)

// The mangled names of absl begin with its inline namespace, if it has one.
std::string AbslPrefix() {
#if ABSL_OPTION_USE_INLINE_NAMESPACE == 1
  const std::string name = RI_STRING(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  return "4absl" + std::to_string(name.size()) + name;
#else
  return "4absl";
#endif
}

// The library's own function: `head` is "_ZN" or "_ZNK", `tail` is what follows the namespace in
// the mangled name, with `$` for each further mention of it.
template <typename Function>
Function Real(const char* head, const char* tail) {
  std::string name = head + AbslPrefix();
  for (const char* c = tail; *c != 0; ++c) {
    if (*c == '$') {
      name += ABSL_OPTION_USE_INLINE_NAMESPACE == 1 ? "S0_" : "S_";
    } else {
      name += *c;
    }
  }
  void* function = dlsym(RTLD_NEXT, name.c_str());
  if (function == nullptr) {
    std::fprintf(stderr, "tsan_absl: absl has no %s\n", name.c_str());
    std::abort();
  }
  return reinterpret_cast<Function>(function);
}

// Notification keeps its flag behind its mutex; HasBeenNotified() reads it without the library.
void* FlagOf(const absl::Notification* notification) {
  return const_cast<char*>(reinterpret_cast<const char*>(notification)) + sizeof(absl::Mutex);
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static const auto real = Real<void (*)(Mutex*)>("_ZN", "5Mutex4LockEv");
  real(this);
  __tsan_acquire(this);
}

void Mutex::Unlock() {
  static const auto real = Real<void (*)(Mutex*)>("_ZN", "5Mutex6UnlockEv");
  __tsan_release(this);
  real(this);
}

bool Mutex::TryLock() {
  static const auto real = Real<bool (*)(Mutex*)>("_ZN", "5Mutex7TryLockEv");
  const bool locked = real(this);
  if (locked) __tsan_acquire(this);
  return locked;
}

void Mutex::ReaderLock() {
  static const auto real = Real<void (*)(Mutex*)>("_ZN", "5Mutex10ReaderLockEv");
  real(this);
  __tsan_acquire(this);
}

void Mutex::ReaderUnlock() {
  static const auto real = Real<void (*)(Mutex*)>("_ZN", "5Mutex12ReaderUnlockEv");
  __tsan_release(this);
  real(this);
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  while (!condition.Eval()) {
    if (Now() >= deadline) return false;
    Unlock();
    SleepFor(Microseconds(50));
    Lock();
  }
  return true;
}

bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  return AwaitWithDeadline(condition, Now() + timeout);
}

void Mutex::Await(const Condition& condition) { AwaitWithDeadline(condition, InfiniteFuture()); }

bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  Lock();
  return AwaitWithDeadline(condition, deadline);
}

bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  return LockWhenWithDeadline(condition, Now() + timeout);
}

void Mutex::LockWhen(const Condition& condition) {
  LockWhenWithDeadline(condition, InfiniteFuture());
}

void CondVar::Wait(Mutex* mutex) {
  static const auto real = Real<void (*)(CondVar*, Mutex*)>("_ZN", "7CondVar4WaitEPN$5MutexE");
  __tsan_release(mutex);
  real(this, mutex);
  __tsan_acquire(mutex);
}

bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static const auto real = Real<bool (*)(CondVar*, Mutex*, Duration)>(
      "_ZN", "7CondVar15WaitWithTimeoutEPN$5MutexEN$8DurationE");
  __tsan_release(mutex);
  const bool result = real(this, mutex, timeout);
  __tsan_acquire(mutex);
  return result;
}

void Notification::Notify() {
  static const auto real = Real<void (*)(Notification*)>("_ZN", "12Notification6NotifyEv");
  __tsan_release(FlagOf(this));
  real(this);
}

void Notification::WaitForNotification() const {
  static const auto real =
      Real<void (*)(const Notification*)>("_ZNK", "12Notification19WaitForNotificationEv");
  real(this);
  __tsan_acquire(FlagOf(this));
}

bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  static const auto real = Real<bool (*)(const Notification*, Duration)>(
      "_ZNK", "12Notification30WaitForNotificationWithTimeoutEN$8DurationE");
  const bool result = real(this, timeout);
  if (result) __tsan_acquire(FlagOf(this));
  return result;
}

ABSL_NAMESPACE_END
}  // namespace absl
