#include "gpu_worker/engine/output_thread.h"

#include <pthread.h>

#include <iterator>
#include <utility>

namespace retroinfer {
namespace {

void TellDelta(ClientOutput& client) {
  if (OutputDelta delta = client.text->TakeDelta(); !delta.tokens.empty() || !delta.text.empty()) {
    client.sink->OnOutput(delta);
  }
}

}  // namespace

OutputThread::OutputThread(size_t max_events) : max_events_(max_events) {
  thread_ = std::thread([this] { Loop(); });
  ::pthread_setname_np(thread_.native_handle(), "output");
}

OutputThread::~OutputThread() {
  {
    const absl::MutexLock lock(&mutex_);
    is_ending_ = true;
  }
  thread_.join();
}

void OutputThread::Post(std::vector<ClientEvent>& events) {
  if (events.empty()) return;
  const auto has_room = [this] {
    mutex_.AssertReaderHeld();
    return waiting_.size() < max_events_;
  };
  const absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&has_room));
  if (waiting_.empty()) {
    waiting_.swap(events);
  } else {
    std::move(events.begin(), events.end(), std::back_inserter(waiting_));
    events.clear();
  }
}

void OutputThread::Drain() {
  const auto is_idle = [this] {
    mutex_.AssertReaderHeld();
    return waiting_.empty() && !is_telling_;
  };
  const absl::MutexLock lock(&mutex_);
  mutex_.Await(absl::Condition(&is_idle));
}

void OutputThread::Loop() {
  const auto has_work = [this] {
    mutex_.AssertReaderHeld();
    return !waiting_.empty() || is_ending_;
  };
  std::vector<ClientEvent> events;
  while (true) {
    {
      const absl::MutexLock lock(&mutex_);
      is_telling_ = false;
      mutex_.Await(absl::Condition(&has_work));
      if (waiting_.empty()) return;
      events.swap(waiting_);
      is_telling_ = true;
    }
    for (ClientEvent& event : events) Tell(event);
    events.clear();
  }
}

void OutputThread::Tell(ClientEvent& event) {
  ClientOutput& client = *event.client;
  if (const auto* token = std::get_if<OutputToken>(&event.what)) {
    // What an end token leaves is told with the end.
    if (!client.text->Append(*token)) TellDelta(client);
  } else if (const auto* delta = std::get_if<OutputDelta>(&event.what)) {
    client.sink->OnOutput(*delta);
  } else if (const auto* progress = std::get_if<PrefillProgress>(&event.what)) {
    client.sink->OnProgress(*progress);
  } else {
    if (client.text.has_value()) {
      client.text->Flush();
      TellDelta(client);
    }
    client.sink->OnFinish(*std::get<std::unique_ptr<GenerationResult>>(event.what));
    client.sink.reset();
  }
}

}  // namespace retroinfer
