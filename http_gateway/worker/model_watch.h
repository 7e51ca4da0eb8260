// What the gateway knows of the model behind the worker.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "http_gateway/api/chat_format.h"
#include "http_gateway/worker/worker_client.h"

namespace retroinfer::gateway {

// Which form of calls a prompt shows that was rendered with a function in it, or with a call of it.
ToolForm ToolFormOfPrompt(const std::string& prompt);
ThinkingOpening ThinkingOfPrompt(const std::string& prompt);

struct ModelState {
  generation::v1::GetModelInfoResponse info;
  absl::Time since;  // of the worker's answer
  ChatFormat chat;
  bool has_chat = false;  // `chat` is known
};

// Asks the worker, keeps the answer for some seconds, and the chat format as long as the template
// is the same one.
//
// Threads: the io_context's.
class ModelWatch {
 public:
  static constexpr absl::Duration kFreshFor = absl::Seconds(5);
  using Callback = std::function<void(absl::StatusOr<std::shared_ptr<const ModelState>>)>;

  // `form`: of the model's calls, whatever its template shows; nothing: what that shows.
  explicit ModelWatch(WorkerClient& worker, std::optional<ToolForm> form = std::nullopt)
      : worker_(worker), form_(form) {}

  // Calls `done` with a state that is not older than `age`, at once or later; `with_chat`: its chat
  // format, too.
  void Get(bool with_chat, Callback done, absl::Duration age = kFreshFor);

 private:
  class Probe;
  void OnInfo(const absl::Status& status, generation::v1::GetModelInfoResponse info);
  // `template_name`: of the template that was asked; empty: it could not be.
  void OnChat(const std::string& template_name, const ChatFormat& chat);
  void AnswerWaiting(const absl::Status& status);
  bool IsFresh(absl::Duration age) const;

  WorkerClient& worker_;
  const std::optional<ToolForm> form_;
  std::shared_ptr<ModelState> state_;
  std::vector<std::pair<bool, Callback>> waiting_;  // whether they want the chat format
  bool asking_info_ = false;
  bool asking_chat_ = false;
};

}  // namespace retroinfer::gateway
