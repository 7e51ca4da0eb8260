// Tells ThreadSanitizer what absl's locks order. Linked into every test of a thread-sanitizer
// build.
//
// The distribution's absl is not instrumented, so TSan would not see that a mutex was taken and
// would report everything that it guards. Here the executable's definitions take the place of
// absl's (they come first in symbol resolution), mark the order, and call the originals. Conditions
// are polled, because absl evaluates them on whichever thread unlocks.
#include <absl/base/config.h>
#include <absl/base/options.h>
#include <absl/synchronization/blocking_counter.h>
#include <absl/synchronization/mutex.h>
#include <absl/synchronization/notification.h>
#include <absl/time/clock.h>
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#define RI_STRINGIFY_(x) #x
#define RI_STRINGIFY(x) RI_STRINGIFY_(x)

namespace {

// absl's own function: its mangled name is `prefix`, the namespace, `suffix`.
void* Original(const char* suffix, const char* prefix) {
  const std::string inline_namespace = RI_STRINGIFY(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  const std::string name = std::string(prefix) + "4absl" + std::to_string(inline_namespace.size()) +
                           inline_namespace + suffix;
  void* const function = ::dlsym(RTLD_NEXT, name.c_str());
  if (function == nullptr) {
    std::fprintf(stderr, "absl has no %s\n", name.c_str());
    std::abort();
  }
  return function;
}

template <typename Function>
Function* OriginalAs(const char* suffix, const char* prefix = "_ZN") {
  return reinterpret_cast<Function*>(Original(suffix, prefix));
}

void Pause() { ::usleep(100); }

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

void Mutex::Lock() {
  static const auto original = OriginalAs<void(Mutex*)>("5Mutex4LockEv");
  original(this);
  __tsan_acquire(this);
}
void Mutex::Unlock() {
  static const auto original = OriginalAs<void(Mutex*)>("5Mutex6UnlockEv");
  __tsan_release(this);
  original(this);
}
bool Mutex::TryLock() {
  static const auto original = OriginalAs<bool(Mutex*)>("5Mutex7TryLockEv");
  const bool locked = original(this);
  if (locked) __tsan_acquire(this);
  return locked;
}
void Mutex::ReaderLock() {
  static const auto original = OriginalAs<void(Mutex*)>("5Mutex10ReaderLockEv");
  original(this);
  __tsan_acquire(this);
}
void Mutex::ReaderUnlock() {
  static const auto original = OriginalAs<void(Mutex*)>("5Mutex12ReaderUnlockEv");
  __tsan_release(this);
  original(this);
}

bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  while (!condition.Eval()) {
    if (Now() >= deadline) return false;
    Unlock();
    Pause();
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

// A condition variable is a hint to look again, so that waking up by time alone is right, too.
bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  mutex->Unlock();
  Pause();
  mutex->Lock();
  return Now() >= deadline;
}
bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  return WaitWithDeadline(mutex, Now() + timeout);
}
void CondVar::Wait(Mutex* mutex) { WaitWithDeadline(mutex, InfiniteFuture()); }

// HasBeenNotified() is inline and reads the flag behind the mutex.
void Notification::Notify() {
  static const auto original = OriginalAs<void(Notification*)>("12Notification6NotifyEv");
  __tsan_release(this);
  __tsan_release(reinterpret_cast<char*>(this) + sizeof(Mutex));
  original(this);
}
bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  while (!HasBeenNotified()) {
    if (Now() >= deadline) return false;
    Pause();
  }
  __tsan_acquire(const_cast<Notification*>(this));
  return true;
}
bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  return WaitForNotificationWithDeadline(Now() + timeout);
}
void Notification::WaitForNotification() const {
  // The original also waits until Notify() no longer touches the object.
  static const auto original =
      OriginalAs<void(const Notification*)>("12Notification19WaitForNotificationEv", "_ZNK");
  original(this);
  __tsan_acquire(const_cast<Notification*>(this));
}

bool BlockingCounter::DecrementCount() {
  static const auto original =
      OriginalAs<bool(BlockingCounter*)>("15BlockingCounter14DecrementCountEv");
  __tsan_release(this);
  return original(this);
}
void BlockingCounter::Wait() {
  static const auto original = OriginalAs<void(BlockingCounter*)>("15BlockingCounter4WaitEv");
  original(this);
  __tsan_acquire(this);
}

ABSL_NAMESPACE_END
}  // namespace absl
