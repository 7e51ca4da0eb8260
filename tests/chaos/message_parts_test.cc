// Messages of a legal size with millions of parts, each of which takes a hundred bytes where it is
// parsed: what they cost in memory.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/status/error_reason.h"
#include "tests/common/rpc/raw_call.h"
#include "tests/integration/service_processes.h"

namespace retroinfer::test_support {
namespace {

constexpr char kImport[] = "/retroinfer.generation.v1.ContextService/ImportContext";
constexpr char kStoreImport[] = "/retroinfer.kvstore.v1.ContextStoreService/ImportContext";
constexpr char kReflection[] = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
constexpr char kHealth[] = "/grpc.health.v1.Health/Check";

// Resident memory in bytes, "VmRSS" or, the most there was, "VmHWM".
int64_t Resident(pid_t pid, const std::string& name) {
  std::ifstream file(absl::StrCat("/proc/", pid, "/status"));
  std::string line;
  while (std::getline(file, line)) {
    long long kibibytes = 0;
    if (line.rfind(name, 0) == 0 &&
        std::sscanf(line.c_str() + name.size(), ": %lld kB", &kibibytes) == 1) {
      return kibibytes << 10;
    }
  }
  return 0;
}

class MessagePartsTest : public testing::Test {
 protected:
  MessagePartsTest() { services_.StartBoth(); }

  // Sends 16 MiB of a field that no message has, without a byte in it, to a method, and holds what
  // that takes. Returns how the call ended.
  absl::Status Send(const ChildProcess& process, const std::string& socket,
                    const std::string& method) {
    std::string parts;
    while (parts.size() < (16 << 20)) parts.append("\xa2\x06\0", 3);
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(-1);
    const auto channel =
        grpc::CreateCustomChannel(absl::StrCat("unix:", (services_.folder() / socket).string()),
                                  grpc::InsecureChannelCredentials(), arguments);
    std::ofstream(absl::StrCat("/proc/", process.pid(), "/clear_refs")) << "5";  // VmHWM anew
    const int64_t before = Resident(process.pid(), "VmRSS");
    const absl::Status status = RawCall(channel, method, parts);
    const int64_t grown = Resident(process.pid(), "VmHWM") - before;
    std::printf("%s: +%ld MiB, %s\n", method.c_str(), grown >> 20, status.ToString().c_str());
    EXPECT_LT(grown, 128 << 20) << method;
    return status;
  }

  ServiceProcesses services_;
};

TEST_F(MessagePartsTest, TakeNoMemory) {
  for (const char* method :
       {kImport, "/retroinfer.generation.v1.ContextService/PinContext", kReflection, kHealth}) {
    const absl::Status status = Send(services_.worker(), "worker.sock", method);
    EXPECT_EQ(common::ReasonOf(status).reason, "REQUEST_TOO_LARGE") << status;
  }
  for (const char* method : {kStoreImport, kReflection, kHealth}) {
    const absl::Status status = Send(services_.store(), "kv_store.sock", method);
    EXPECT_EQ(common::ReasonOf(status).reason, "REQUEST_TOO_LARGE") << status;
  }
}

}  // namespace
}  // namespace retroinfer::test_support
