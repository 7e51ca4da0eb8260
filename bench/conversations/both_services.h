// Both services in this process, with a model of random weights: the store with its sockets, and
// the worker's engine attached to it, without the worker's server.
#pragma once

#include <filesystem>
#include <memory>

#include "common/service/service_notifier.h"
#include "gpu_worker/assembly/served_engine.h"
#include "kv_store_service/server/store_server.h"

namespace retroinfer::bench {

class BothServices {
 public:
  // Ends the program where one of them does not start. `options`: the folder of sockets is filled
  // in.
  BothServices(ServedEngineOptions options, uint64_t arena_bytes);
  ~BothServices();

  Engine& engine() { return served_->engine(); }
  const ServedModel& model() const { return served_->model(); }
  const DeviceInfo& device() const { return device_; }

 private:
  std::filesystem::path folder_;
  const common::ServiceNotifier silent_;
  DeviceInfo device_;
  std::unique_ptr<kvstore::StoreServer> store_;
  std::unique_ptr<ServedEngine> served_;
};

}  // namespace retroinfer::bench
