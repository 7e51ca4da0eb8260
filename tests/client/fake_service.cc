// Stands in for kv_store_service and gpu_worker in tests of the supervisor: serves health on the
// socket that the real one has, by the name it is started under, and does what files in its socket
// folder say:
//   NAME.fail     ends with exit code 1 at once
//   NAME.refuse   ends with exit code 2 at once, as for settings that make no sense
//   NAME.drains   ends at the second SIGTERM
//   NAME.deaf     ignores SIGTERM
//   NAME.mistake  says what is in that file and ends with exit code 2 if asked to check its
//   settings
// It leaves NAME.pid, NAME.args with its arguments, one a line, NAME.hups with a 1 for each
// SIGHUP, and NAME.terms with one for each SIGTERM.
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

#include "retroinfer/generation/v1/generation.grpc.pb.h"

int main(int argc, char** argv) {
  const std::string name = std::filesystem::path(argv[0]).filename();
  std::string folder;
  bool checks = false;
  const std::string flag = "--socket-dir=";
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind(flag, 0) == 0) folder = argument.substr(flag.size());
    checks |= argument == "--check-settings";
  }
  const std::string prefix = folder + "/" + name;
  if (checks) {
    std::ifstream mistake(prefix + ".mistake");
    if (mistake) std::cerr << mistake.rdbuf();
    return mistake ? 2 : 0;
  }
  if (std::filesystem::exists(prefix + ".fail")) return 1;
  if (std::filesystem::exists(prefix + ".refuse")) return 2;
  std::ofstream args(prefix + ".args");
  for (int i = 1; i < argc; ++i) args << argv[i] << "\n";
  args.close();

  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGHUP);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  const std::string socket = name == "gpu_worker" ? "generation.sock" : "kv_store.sock";
  builder.AddListeningPort("unix:" + folder + "/" + socket, grpc::InsecureServerCredentials());
  retroinfer::generation::v1::GenerationService::Service service;  // gRPC wants one beside health
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  if (server == nullptr) return 1;
  std::ofstream(prefix + ".pid.new") << ::getpid();
  std::filesystem::rename(prefix + ".pid.new", prefix + ".pid");
  int signal = 0;
  int terms = 0;
  do {
    sigwait(&signals, &signal);
    terms += signal == SIGTERM ? 1 : 0;
    std::ofstream(prefix + (signal == SIGHUP ? ".hups" : ".terms"), std::ios::app) << "1";
  } while (signal == SIGHUP || std::filesystem::exists(prefix + ".deaf") ||
           (terms < 2 && std::filesystem::exists(prefix + ".drains")));
  ::_exit(0);
}
