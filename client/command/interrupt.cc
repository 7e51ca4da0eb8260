#include "client/command/interrupt.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

namespace retroinfer::client {
namespace {

sigset_t InterruptSignals(std::initializer_list<int> more) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  for (const int signal : more) sigaddset(&signals, signal);
  return signals;
}

}  // namespace

InterruptWatcher::InterruptWatcher(std::initializer_list<int> more)
    : signals_(InterruptSignals(more)) {
  ::pthread_sigmask(SIG_BLOCK, &signals_, &mask_before_);
  thread_ = std::thread([this] { Run(); });
}

InterruptWatcher::~InterruptWatcher() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  ::pthread_kill(thread_.native_handle(), SIGINT);
  thread_.join();
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

void InterruptWatcher::SetCallback(std::function<void(int)> on_interrupt) {
  absl::MutexLock lock(&mutex_);
  callback_ = std::move(on_interrupt);
}

void InterruptWatcher::Run() {
  while (true) {
    int signal = 0;
    ::sigwait(&signals_, &signal);
    absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    if (signal == SIGINT || signal == SIGTERM) last_signal_ = signal;
    if (callback_ == nullptr) ::_exit(128 + signal);
    callback_(signal);
  }
}

}  // namespace retroinfer::client
