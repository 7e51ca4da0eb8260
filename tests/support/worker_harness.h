// A worker's gRPC server over a FakeEngine, in the test's process, on a unix socket.
#pragma once

#include <grpcpp/grpcpp.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>
#include <utility>

#include "common/log/check.h"
#include "gpu_worker/server/worker_server.h"
#include "retroinfer/generation/v1/generation.grpc.pb.h"
#include "tests/support/byte_tokenizer.h"
#include "tests/support/fake_engine.h"

namespace retroinfer {

class WorkerHarness {
 public:
  struct Settings {
    FakeEngine::Options engine = {.vocab_size = 300};
    ServerOptions server;
    bool serve = true;  // give the engine to the server at once
  };

  explicit WorkerHarness(Settings settings)
      : metrics_("gpu_worker", "1.2.3", "test", "cpu"),
        // The contents, a line each.
        tokenizer_(MakeByteTokenizer({.chat_template =
                                          "{% for m in messages %}{{ '' if loop.first else '\\n' }}"
                                          "{{ m.content }}{% endfor %}"})),
        template_(ChatTemplate::Create(*tokenizer_)),
        engine_(std::make_unique<FakeEngine>(settings.engine)) {
    std::string pattern = (std::filesystem::temp_directory_path() / "retroinfer-XXXXXX").string();
    RI_CHECK(::mkdtemp(pattern.data()) != nullptr);
    folder_ = pattern;
    settings.server.addresses = {absl::StrCat("unix:", (folder_ / "worker.sock").string())};
    settings.server.version = "1.2.3";
    settings.server.revision = "abcdef";
    auto server = WorkerServer::Start(settings.server, metrics_);
    RI_CHECK(server.ok());
    server_ = *std::move(server);
    FillModel(settings.engine.vocab_size);
    if (settings.serve) Serve();
  }
  WorkerHarness() : WorkerHarness(Settings()) {}
  ~WorkerHarness() {
    server_.reset();
    engine_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  void Serve() { server_->Serve(&model_, engine_.get()); }

  const std::string& address() const { return server_->addresses().front(); }
  const std::filesystem::path& folder() const { return folder_; }
  FakeEngine& engine() { return *engine_; }
  WorkerServer& server() { return *server_; }
  ServedModel& model() { return model_; }
  common::Metrics& metrics() { return metrics_; }

  std::shared_ptr<grpc::Channel> Channel() const {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(64 << 20);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel(address(), grpc::InsecureChannelCredentials(), arguments);
  }
  std::unique_ptr<generation::v1::GenerationService::Stub> Stub() const {
    return generation::v1::GenerationService::NewStub(Channel());
  }

 private:
  void FillModel(int32_t vocab_size) {
    model_.tokenizer = tokenizer_.get();
    model_.chat_template = &template_;
    model_.name = "fake-model";
    model_.architecture = "FakeForCausalLM";
    model_.vocab_size = vocab_size;
    model_.num_layers = 2;
    model_.num_query_heads = 8;
    model_.num_kv_heads = 2;
    model_.head_dim = 64;
    model_.compute_dtype = "f32";
    model_.kv_dtype = "bf16";
    model_.index_dtype = "bf16";
    model_.backend = "cpu";
    model_.load_format = "auto";
    model_.device_name = "A Processor";
    model_.eos_token_ids = {kByteTokenizerEndOfText};
    model_.default_sampling.max_tokens = 16;
  }

  common::Metrics metrics_;
  std::unique_ptr<Tokenizer> tokenizer_;
  ChatTemplate template_;
  ServedModel model_;
  std::filesystem::path folder_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<WorkerServer> server_;
};

}  // namespace retroinfer
