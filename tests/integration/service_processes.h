// Both services as child processes in a folder of their own, for tests and benchmarks.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "build_paths.h"
#include "gpu_worker/device/device.h"
#include "retroinfer/generation/v1/generation.grpc.pb.h"
#include "retroinfer/kvstore/v1/kv_store.grpc.pb.h"
#include "tests/kv_store_service/server/child_process.h"

namespace retroinfer::test_support {

using kvstore::ChildProcess;
using kvstore::Eventually;

// Path of a program of this project: of this build, or in the folder RETROINFER_BIN_DIR.
std::string ServiceProgram(const std::string& name);

std::string TestDevice();

struct ServiceOptions {
  std::string model_folder = RETROINFER_SOURCE_DIR "/models/needle";
  std::string arena_bytes = "96MiB";
  std::string memory = "512MiB";  // of the worker
  // Of the worker, as its --device: RETROINFER_TEST_DEVICE, or the CPU.
  std::string device = TestDevice();
  std::vector<std::string> store_arguments;
  std::vector<std::string> worker_arguments;
  // Of the store: another one that takes the same arguments, perhaps behind "/usr/bin/env A=B".
  std::vector<std::string> store_program = {ServiceProgram("kv_store_service")};
};

// A gpu_worker and its kv_store_service. They listen on unix sockets in a temporary folder and
// serve their metrics on free ports, so that runs beside each other do not meet.
//
// Threads: the one that made it; the kernel kills the children when that thread ends.
// Owns:    the children and the folder. Programs that fail to start abort the test program.
class ServiceProcesses {
 public:
  explicit ServiceProcesses(ServiceOptions options = {});
  ~ServiceProcesses();
  ServiceProcesses(const ServiceProcesses&) = delete;
  ServiceProcesses& operator=(const ServiceProcesses&) = delete;

  // Start a process that is not there, and wait until it serves.
  void StartStore();
  void StartWorker();
  // Start them without waiting.
  void LaunchStore();
  void LaunchWorker();
  void StartBoth() {
    StartStore();
    StartWorker();
  }
  // Starts a further worker of the same store with a socket of its own, and `extra` arguments
  // (flag, value, ...), which replace the usual ones. Does not wait for it.
  std::unique_ptr<ChildProcess> StartOtherWorker(const std::string& name,
                                                 const std::vector<std::string>& extra = {});

  // How processes are started from now on.
  ServiceOptions& options() { return options_; }

  ChildProcess& store() { return *store_; }
  ChildProcess& worker() { return *worker_; }
  const std::filesystem::path& folder() const { return folder_; }
  // What a process started with StartOtherWorker(name) wrote.
  std::string LogOf(const std::string& name) const;

  generation::v1::GenerationService::Stub& worker_stub() { return *worker_stub_; }
  kvstore::v1::KvStoreService::Stub& store_stub() { return *store_stub_; }
  std::unique_ptr<generation::v1::GenerationService::Stub> NewWorkerStub() const;
  std::unique_ptr<kvstore::v1::KvStoreService::Stub> NewStoreStub() const;

  // The health service's answer, within a second.
  bool WorkerIsServing();
  bool StoreIsServing();
  // Abort the test program if there is no answer within 10 s.
  generation::v1::GetModelInfoResponse ModelInfo();
  // What the worker computes on, as far as it tells.
  DeviceInfo WorkerDevice();
  kvstore::v1::GetStatsResponse StoreStats();
  // What Prometheus would read now.
  std::string WorkerMetrics() const;
  std::string StoreMetrics() const;
  // Waits until neither process holds anything for a request. Returns what is held, empty if
  // nothing.
  std::string WaitUntilNothingIsHeld(absl::Duration timeout = absl::Seconds(10));

 private:
  std::string PathOf(const std::string& name) const { return (folder_ / name).string(); }
  std::vector<std::string> WorkerArguments(const std::string& name) const;
  std::string WhatIsHeld();

  ServiceOptions options_;
  std::filesystem::path folder_;
  std::unique_ptr<ChildProcess> store_;
  std::unique_ptr<ChildProcess> worker_;
  std::unique_ptr<kvstore::v1::KvStoreService::Stub> store_stub_;
  std::unique_ptr<generation::v1::GenerationService::Stub> worker_stub_;
};

// Returns the names of the segments on the disk; nothing if the store does not answer in time.
std::optional<std::set<std::string>> DurableNames(kvstore::v1::KvStoreService::Stub& store,
                                                  absl::Duration timeout = absl::Seconds(10));

// Anonymous resident memory of a process in bytes: RssAnon of /proc/<pid>/status, which leaves the
// shared mappings out.
int64_t AnonymousBytes(pid_t pid);

}  // namespace retroinfer::test_support
