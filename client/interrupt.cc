#include "client/interrupt.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <utility>

namespace retroinfer::client {
namespace {

sigset_t InterruptSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

}  // namespace

InterruptWatcher::InterruptWatcher() {
  const sigset_t signals = InterruptSignals();
  ::pthread_sigmask(SIG_BLOCK, &signals, &mask_before_);
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
  const sigset_t signals = InterruptSignals();
  while (true) {
    int signal = 0;
    ::sigwait(&signals, &signal);
    absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    if (callback_ == nullptr) ::_exit(128 + signal);
    callback_(signal);
  }
}

}  // namespace retroinfer::client
