// Clients that open calls and reset them, in a loop, as fast as they can. RETROINFER_FLOOD_SECONDS
// for longer runs.
//
// Attackers and service share the machine, so others' answers take longer whatever the service
// does. How much of that is the service's is told by a control: as many threads that take as much
// processor time as attackers and service together and connect to nothing.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "tests/integration/service_processes.h"
#include "tests/support/certificates.h"
#include "tests/support/http2_client.h"

namespace retroinfer::test_support {
namespace {

namespace v1 = generation::v1;

constexpr char kGenerate[] = "/retroinfer.generation.v1.GenerationService/Generate";
constexpr char kKey[] = "a key that attackers do not know";
constexpr int kConnections = 8;
constexpr int kBatch = 100;
constexpr int64_t kMebibyte = 1 << 20;

absl::Duration FloodTime() {
  const char* const seconds = std::getenv("RETROINFER_FLOOD_SECONDS");
  return absl::Seconds(seconds == nullptr ? 1 : std::atoi(seconds));
}

absl::Duration CpuTime(clockid_t clock) {
  timespec time{};
  ::clock_gettime(clock, &time);
  return absl::DurationFromTimespec(time);
}
absl::Duration CpuTimeOf(pid_t pid) {
  clockid_t clock = 0;
  return ::clock_getcpuclockid(pid, &clock) == 0 ? CpuTime(clock) : absl::ZeroDuration();
}

struct Attack {
  std::string name;
  std::function<void(Http2Client&)> run;  // what an attacker does with one call, or connection
  uint64_t calls_least = 1000;            // until then the attack goes on
};

// Threads that attack until the end, each with one connection at a time.
class Flood {
 public:
  Flood(const std::string& address, bool tls, const Attack& attack) {
    for (int i = 0; i < kConnections; ++i) {
      threads_.emplace_back([this, address, tls, attack] {
        while (!stop_) Run(address, tls, attack);
        cpu_nanoseconds_ += absl::ToInt64Nanoseconds(CpuTime(CLOCK_THREAD_CPUTIME_ID));
      });
    }
  }
  ~Flood() { Stop(); }
  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  uint64_t calls() const { return calls_; }
  uint64_t closed() const { return closed_; }
  // REQUIRES: Stop() was called.
  absl::Duration cpu_time() const { return absl::Nanoseconds(cpu_nanoseconds_.load()); }

 private:
  void Run(const std::string& address, bool tls, const Attack& attack) {
    Http2Client client(address, tls);
    if (!client.connected()) return absl::SleepFor(absl::Milliseconds(1));
    client.Begin();
    while (!stop_ && client.connected()) {
      for (int i = 0; i < kBatch; ++i) attack.run(client);
      while (!stop_ && client.connected() && !client.Flush(true, absl::Milliseconds(100))) {
      }
      calls_ += kBatch;
    }
    if (!client.connected()) ++closed_;
  }

  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> calls_{0};
  std::atomic<uint64_t> closed_{0};
  std::atomic<int64_t> cpu_nanoseconds_{0};
  std::vector<std::thread> threads_;
};

// Threads that take a share of a processor each, in pieces, and do nothing else.
class Control {
 public:
  explicit Control(double share) {
    for (int i = 0; i < kConnections; ++i) {
      threads_.emplace_back([this, share] { Run(share); });
    }
  }
  ~Control() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void Run(double share) {
    const absl::Time begin = absl::Now();
    while (!stop_) {
      if (CpuTime(CLOCK_THREAD_CPUTIME_ID) >= share * (absl::Now() - begin)) {
        absl::SleepFor(absl::Microseconds(200));
      }
    }
  }

  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

// The time that each answer took.
class Latencies {
 public:
  // Asks again and again, for `time` and until there are a few answers.
  void Measure(const std::function<grpc::Status()>& ask, absl::Duration time) {
    const absl::Time end = absl::Now() + time;
    for (int answers = 0; absl::Now() < end || answers < 5; ++answers) {
      const absl::Time begin = absl::Now();
      const grpc::Status status = ask();
      EXPECT_TRUE(status.ok()) << status.error_message();
      if (!status.ok()) break;
      times_.push_back(absl::Now() - begin);
    }
    std::sort(times_.begin(), times_.end());
  }
  absl::Duration Median() const { return At(0.5); }
  absl::Duration NinetyNinth() const { return At(0.99); }

 private:
  absl::Duration At(double share) const {
    if (times_.empty()) return absl::InfiniteDuration();
    return times_[static_cast<size_t>(share * static_cast<double>(times_.size()))];
  }
  std::vector<absl::Duration> times_;
};

std::shared_ptr<grpc::Channel> Channel(const std::string& address, const std::string& certificate) {
  if (certificate.empty()) {
    return grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  }
  grpc::SslCredentialsOptions ssl;
  ssl.pem_root_certs = ReadText(certificate);
  return grpc::CreateChannel(address, grpc::SslCredentials(ssl));
}

// One generated token: through the gate, the engine and back.
std::function<grpc::Status()> AskForAToken(v1::GenerationService::Stub* stub) {
  return [stub] {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Minutes(1)));
    context.AddMetadata("authorization", absl::StrCat("Bearer ", kKey));
    v1::GenerateRequest request;
    request.set_text("a");
    request.mutable_sampling()->set_max_tokens(1);
    const auto reader = stub->Generate(&context, request);
    v1::GenerateResponse event;
    while (reader->Read(&event)) {
    }
    return reader->Finish();
  };
}

// Lines of a log, but for those about requests that ran.
int64_t LinesAboutOthers(const std::string& log) {
  std::istringstream lines(log);
  int64_t count = 0;
  for (std::string line; std::getline(lines, line);) {
    if (line.find(" length: ") == std::string::npos) ++count;
  }
  return count;
}

void ResetAtOnce(Http2Client& client) { client.Reset(client.OpenCall(kGenerate)); }
void ResetAfterTheRequest(Http2Client& client) {
  const uint32_t stream = client.OpenCall(kGenerate);
  client.SendMessage(stream,
                     "\x1a\x01"
                     "a");  // text: "a"
  client.Reset(stream);
}
void LetTheDeadlinePass(Http2Client& client) {
  const uint32_t stream = client.OpenCall(kGenerate, {{"grpc-timeout", "1n"}});
  client.SendMessage(stream, "");
}
void LeaveWithOpenCalls(Http2Client& client) {
  if (!client.connected()) return;
  for (int i = 0; i < kBatch; ++i) client.OpenCall(kGenerate, {}, i % 2 == 0);
  client.Flush();
  client.Disconnect();
}
// Generates on a few streams. Unless they are read, their windows are of no bytes, and all of the
// answers stay with the server.
void Stream(Http2Client& client, bool reads) {
  if (!client.connected()) return;
  constexpr int kStreams = 8;
  if (!reads) client.Frame(Http2Client::kSettings, 0, 0, std::string("\0\4\0\0\0\0", 6));
  v1::GenerateRequest request;
  request.set_text("a");
  request.mutable_sampling()->set_max_tokens(4);
  request.mutable_sampling()->set_ignore_eos(true);
  for (int i = 0; i < kStreams; ++i) {
    client.SendMessage(client.OpenCall(kGenerate), request.SerializeAsString());
  }
  const absl::Time next = absl::Now() + absl::Milliseconds(500);
  client.Flush(reads);
  if (reads) {
    client.ReadUntil([&] { return client.ended_streams() >= kStreams; }, absl::Seconds(5));
  }
  absl::SleepFor(next - absl::Now());
  client.Disconnect();
}
void ReadNothing(Http2Client& client) { Stream(client, false); }
void ReadAll(Http2Client& client) { Stream(client, true); }
// Connections that say nothing at all, or no more than their greeting.
void StaySilent(Http2Client& client, const std::string& address) {
  if (!client.connected()) return;
  std::vector<std::unique_ptr<Http2Client>> silent;
  for (int i = 0; i < kBatch / 4; ++i) {
    silent.push_back(std::make_unique<Http2Client>(address, false));
    if (i % 2 == 0) silent.back()->Begin();
    silent.back()->Flush(false);
  }
  absl::SleepFor(absl::Milliseconds(200));
  client.Disconnect();
}
void ResetOtherMethods(Http2Client& client) {
  for (const char* path :
       {"/grpc.health.v1.Health/Watch", "/grpc.health.v1.Health/Check",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "/no.such/Method"}) {
    client.Reset(client.OpenCall(path));
  }
}

std::string Show(absl::Duration time) {
  return absl::StrFormat("%.2f ms", absl::ToDoubleMilliseconds(time));
}

// Floods `process` at `address` and holds what has to hold of its memory. Returns whether its other
// clients got their answers as soon as beside a control that takes as much of the processors.
bool ServesOthersDuring(const ChildProcess& process, const std::string& address, bool tls,
                        const Attack& attack, const std::function<grpc::Status()>& ask) {
  Latencies quiet, during, controlled;
  quiet.Measure(ask, absl::Milliseconds(300));
  const int64_t memory_before = AnonymousBytes(process.pid());
  const int64_t lines_before = LinesAboutOthers(process.Log());
  const absl::Time begin = absl::Now();
  const absl::Duration cpu_before = CpuTimeOf(process.pid());
  Flood flood(address, tls, attack);
  int64_t memory_most = 0;
  do {
    during.Measure(ask, absl::Milliseconds(200));
    memory_most = std::max(memory_most, AnonymousBytes(process.pid()));
  } while (absl::Now() < begin + FloodTime() ||
           (flood.calls() <= attack.calls_least && absl::Now() < begin + absl::Minutes(1)));
  const absl::Duration took = absl::Now() - begin;
  const double service_share = absl::FDivDuration(CpuTimeOf(process.pid()) - cpu_before, took);
  flood.Stop();
  const double share = absl::FDivDuration(flood.cpu_time(), took);
  {
    const Control control((share + service_share) / kConnections);
    controlled.Measure(ask, FloodTime() / 2);
  }
  const int64_t lines = LinesAboutOthers(process.Log()) - lines_before;
  std::printf(
      "%s: %lu calls, %lu connections closed; memory +%ld MiB; log +%ld lines; attackers take %.2f "
      "processors, the service %.2f; an answer takes (median, p99) %s, %s; during it "
      "%s, %s; during the control %s, %s: %.1f times as long\n",
      attack.name.c_str(), flood.calls(), flood.closed(), (memory_most - memory_before) / kMebibyte,
      lines, share, service_share, Show(quiet.Median()).c_str(), Show(quiet.NinetyNinth()).c_str(),
      Show(during.Median()).c_str(), Show(during.NinetyNinth()).c_str(),
      Show(controlled.Median()).c_str(), Show(controlled.NinetyNinth()).c_str(),
      absl::FDivDuration(during.Median(), controlled.Median()));
  EXPECT_GT(flood.calls(), attack.calls_least);
  EXPECT_LT(memory_most - memory_before, 100 * kMebibyte);
  EXPECT_TRUE(kvstore::Eventually(
      [&] { return AnonymousBytes(process.pid()) - memory_before < 60 * kMebibyte; }));
  EXPECT_LT(lines, 30 * (absl::ToInt64Seconds(absl::Now() - begin) + 5));
  EXPECT_TRUE(ask().ok());
  return during.Median() < 10 * controlled.Median() + absl::Seconds(1) &&
         during.NinetyNinth() < 10 * controlled.NinetyNinth() + absl::Seconds(1);
}

// What else runs on this machine may hold everything up for seconds, in one half of a measurement;
// what an attack does it does every time.
void ExpectToWithstand(const ChildProcess& process, const std::string& address, bool tls,
                       const Attack& attack, const std::function<grpc::Status()>& ask) {
  constexpr int kTimes = 3;
  bool serves = false;
  for (int time = 0; time < kTimes && !serves; ++time) {
    serves = ServesOthersDuring(process, address, tls, attack, ask);
  }
  EXPECT_TRUE(serves) << attack.name << ": held up others " << kTimes << " times";
}

std::string WorkerSocket(const ServiceProcesses& services) {
  return absl::StrCat("unix:", (services.folder() / "worker.sock").string());
}

TEST(ConnectionFlood, TheWorkerWithstandsResets) {
  ServiceProcesses services;
  services.StartBoth();
  const auto ask = AskForAToken(&services.worker_stub());
  const std::string address = WorkerSocket(services);
  const auto stay_silent = [address](Http2Client& client) { StaySilent(client, address); };
  for (const Attack& attack :
       std::vector<Attack>{{"reset at once", ResetAtOnce},
                           {"reset after the request", ResetAfterTheRequest},
                           {"deadlines of a nanosecond", LetTheDeadlinePass},
                           {"leave with open calls", LeaveWithOpenCalls},
                           {"reset of other methods", ResetOtherMethods},
                           {"stay silent", stay_silent, 200},
                           {"streams that are read", ReadAll, 800},
                           {"streams that are never read", ReadNothing, 800}}) {
    ExpectToWithstand(services.worker(), address, false, attack, ask);
    EXPECT_TRUE(kvstore::Eventually(
        [&] {
          return services.WorkerMetrics().find("open_calls{service=\"gpu_worker\"} 0\n") !=
                 std::string::npos;
        },
        absl::Minutes(1)));
  }
}

TEST(ConnectionFlood, TheWorkerWithstandsResetsWithoutTheKeyAndOverTls) {
  ServiceProcesses services;
  const std::string certificate = services.folder() / "c.pem";
  const std::string key = services.folder() / "k.pem";
  const std::string api_key = services.folder() / "api_key";
  WriteCertificate(certificate, key);
  std::ofstream(api_key) << kKey;
  services.options().worker_arguments = {"--listen",       "localhost:0", "--tls-certificate",
                                         certificate,      "--tls-key",   key,
                                         "--api-key-file", api_key};
  services.StartBoth();
  const std::string log = services.worker().Log();
  const size_t found = log.find("localhost:");
  ASSERT_NE(found, std::string::npos) << log;
  const std::string address = absl::StrCat("localhost:", std::atoi(log.c_str() + found + 10));
  const auto stub = v1::GenerationService::NewStub(Channel(address, certificate));
  ExpectToWithstand(services.worker(), address, true, {"TLS, without the key", ResetAtOnce},
                    AskForAToken(stub.get()));
}

TEST(ConnectionFlood, TheStoreWithstandsResets) {
  ServiceProcesses services;
  services.StartStore();
  const auto ask = [&services] {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Minutes(1)));
    kvstore::v1::GetStatsResponse response;
    return services.store_stub().GetStats(&context, {}, &response);
  };
  const std::string address = absl::StrCat("unix:", (services.folder() / "kv_store.sock").string());
  for (const bool whole : {false, true}) {
    const auto attack = [whole](Http2Client& client) {
      const uint32_t stream = client.OpenCall("/retroinfer.kvstore.v1.KvStoreService/GetStats");
      if (whole) client.SendMessage(stream, "");
      client.Reset(stream);
    };
    ExpectToWithstand(services.store(), address, false,
                      {whole ? "the store, whole requests" : "the store", attack}, ask);
  }
}

}  // namespace
}  // namespace retroinfer::test_support
