// What http_gateway adds to streams: many of them at once, with the gateway on one core, against
// the same streams over gRPC. The worker is a real one with an engine that gives each stream a
// token per step and computes nothing.
//
// usage: gateway_streams_bench [streams, 1000] [tokens of each, 100] [milliseconds a step, 100]
//                              [rounds, 3]
// A round is the same load over gRPC and then through the gateway, so that what else the machine
// does is about the same for both. Prints one JSON object: the time between tokens (mean over a
// stream; median, 99 % and longest of the streams of all rounds) on both ways, what the gateway
// adds to the median (median of the rounds), bytes of its memory a stream, and its processor time,
// which depends least on what else runs.
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <spdlog/spdlog.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "bench/support/must.h"
#include "build_paths.h"
#include "common/build_info/build_info.h"
#include "common/shm/unique_fd.h"
#include "http_gateway/worker/worker_client.h"
#include "tests/support/worker_harness.h"

namespace retroinfer {
namespace {

namespace v1 = generation::v1;

struct Load {
  int streams = 1000;
  int tokens = 100;
  absl::Duration step = absl::Milliseconds(100);
  int rounds = 3;
};

// When a stream's first and last tokens came.
struct Span {
  absl::Time first = absl::InfiniteFuture();
  absl::Time last = absl::InfinitePast();
  bool done = false;
};

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

// Milliseconds between tokens, of each stream.
std::vector<double> Intervals(const std::vector<Span>& spans, const Load& load) {
  std::vector<double> intervals;
  for (const Span& span : spans) {
    if (!span.done) bench::Fail("a stream did not end");
    intervals.push_back(absl::ToDoubleMilliseconds(span.last - span.first) / (load.tokens - 1));
  }
  return intervals;
}

nlohmann::json Summary(const std::vector<double>& intervals) {
  return {{"itl_ms_median", Quantile(intervals, 0.5)},
          {"itl_ms_p99", Quantile(intervals, 0.99)},
          {"itl_ms_max", Quantile(intervals, 1)}};
}

class DirectStream : public gateway::GenerateEvents {
 public:
  void OnEvent(v1::GenerateResponse&& event) override {
    if (event.has_output()) {
      span.last = absl::Now();
      span.first = std::min(span.first, span.last);
    }
    stream->ReadNext();
  }
  void OnEnd(const absl::Status& status) override {
    bench::Must(status);
    span.done = true;
    ++*ended;
  }
  gateway::GenerateStream* stream = nullptr;
  int* ended = nullptr;
  Span span;
};

std::vector<Span> RunDirect(const std::string& address, const Load& load) {
  boost::asio::io_context io(1);
  const auto work = boost::asio::make_work_guard(io);
  auto client = bench::Must(gateway::WorkerClient::Create({.address = address}, io));
  v1::GenerateRequest request;
  request.set_text("a");
  request.mutable_sampling()->set_max_tokens(load.tokens);
  int ended = 0;
  std::vector<DirectStream> streams(static_cast<size_t>(load.streams));
  for (DirectStream& stream : streams) {
    stream.ended = &ended;
    stream.stream = client->Generate(request, "", "", &stream);
  }
  while (ended < load.streams) io.run_one();
  std::vector<Span> spans;
  for (const DirectStream& stream : streams) spans.push_back(stream.span);
  return spans;
}

// http_gateway as a child on core 0, which the kernel ends with this program.
class GatewayProcess {
 public:
  GatewayProcess(const std::string& folder, const std::string& worker)
      : log_(folder + "/gateway.log") {
    const char* const bin = std::getenv("RETROINFER_BIN_DIR");
    const std::string program =
        absl::StrCat(bin != nullptr ? bin : RETROINFER_BINARY_DIR "/bin", "/http_gateway");
    pid_ = ::fork();
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      cpu_set_t cores;
      CPU_ZERO(&cores);
      CPU_SET(0, &cores);
      ::sched_setaffinity(0, sizeof(cores), &cores);
      const int log = ::open(log_.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      ::dup2(log, STDERR_FILENO);
      const std::string worker_flag = "--worker=" + worker;
      ::execl(program.c_str(), program.c_str(), "--http=127.0.0.1:0", worker_flag.c_str(),
              "--max-generations=100000", "--max-connections=100000", nullptr);
      ::_exit(127);
    }
    const absl::Time started = absl::Now();
    while (port_ == 0) {
      std::ifstream file(log_);
      std::stringstream text;
      text << file.rdbuf();
      const size_t place = text.str().find("127.0.0.1:");
      if (place != std::string::npos) port_ = std::atoi(text.str().c_str() + place + 10);
      if (absl::Now() - started > absl::Minutes(1)) bench::Fail("the gateway does not start");
      absl::SleepFor(absl::Milliseconds(1));
    }
    start_time_ = absl::Now() - started;
  }
  ~GatewayProcess() {
    ::kill(pid_, SIGTERM);
    ::waitpid(pid_, nullptr, 0);
  }
  int port() const { return port_; }
  absl::Duration start_time() const { return start_time_; }
  int64_t AnonymousBytes() const {
    std::ifstream file(absl::StrCat("/proc/", pid_, "/status"));
    for (std::string line; std::getline(file, line);) {
      if (absl::StartsWith(line, "RssAnon:")) return std::atoll(line.c_str() + 8) * 1024;
    }
    return 0;
  }
  double CpuSeconds() const {
    std::ifstream file(absl::StrCat("/proc/", pid_, "/stat"));
    std::string text;
    std::getline(file, text);
    std::stringstream fields(text.substr(text.rfind(')') + 2));
    std::string field;
    double ticks = 0;
    for (int i = 3; i <= 15 && fields >> field; ++i) {
      if (i == 14 || i == 15) ticks += std::atof(field.c_str());
    }
    return ticks / static_cast<double>(::sysconf(_SC_CLK_TCK));
  }

 private:
  const std::string log_;
  pid_t pid_ = -1;
  int port_ = 0;
  absl::Duration start_time_;
};

common::UniqueFd Connect(int port) {
  common::UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
    bench::Fail("cannot connect to the gateway");
  }
  return fd;
}

struct HttpStream {
  common::UniqueFd fd;
  std::string tail;  // of what came: markers may be cut
  Span span;
};

// Takes what has come; returns whether the stream has ended.
bool Take(HttpStream& stream) {
  char buffer[65536];
  const ssize_t size = ::recv(stream.fd.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
  if (size <= 0) bench::Fail("the gateway closed a stream");
  const std::string text = stream.tail + std::string(buffer, static_cast<size_t>(size));
  if (absl::StrContains(text, "\"finish_reason\":null")) {
    stream.span.last = absl::Now();
    stream.span.first = std::min(stream.span.first, stream.span.last);
  }
  stream.tail = text.substr(text.size() - std::min<size_t>(text.size(), 16));
  stream.span.done = absl::StrContains(text, "[DONE]");
  return stream.span.done;
}

std::vector<Span> RunGateway(const GatewayProcess& gateway, const Load& load,
                             int64_t* bytes_in_flight) {
  const common::UniqueFd poll(::epoll_create1(EPOLL_CLOEXEC));
  std::vector<HttpStream> streams(static_cast<size_t>(load.streams));
  const std::string body =
      absl::StrCat(R"({"prompt":"a","stream":true,"max_tokens":)", load.tokens, "}");
  const std::string request =
      absl::StrCat("POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n",
                   "Content-Length: ", body.size(), "\r\n\r\n", body);
  for (HttpStream& stream : streams) {
    stream.fd = Connect(gateway.port());
    epoll_event event{.events = EPOLLIN, .data = {.ptr = &stream}};
    ::epoll_ctl(poll.get(), EPOLL_CTL_ADD, stream.fd.get(), &event);
  }
  for (HttpStream& stream : streams) {
    if (::send(stream.fd.get(), request.data(), request.size(), MSG_NOSIGNAL) < 0) {
      bench::Fail("cannot send to the gateway");
    }
  }
  int ended = 0;
  absl::Time next_look = absl::Now();
  while (ended < load.streams) {
    epoll_event events[256];
    const int count = ::epoll_wait(poll.get(), events, 256, 60'000);
    if (count <= 0) bench::Fail("no stream has a token for a minute");
    for (int i = 0; i < count; ++i) {
      auto* const stream = static_cast<HttpStream*>(events[i].data.ptr);
      if (!Take(*stream)) continue;
      ::epoll_ctl(poll.get(), EPOLL_CTL_DEL, stream->fd.get(), nullptr);
      ++ended;
    }
    if (absl::Now() < next_look) continue;
    next_look = absl::Now() + absl::Milliseconds(200);
    *bytes_in_flight = std::max(*bytes_in_flight, gateway.AnonymousBytes());
  }
  std::vector<Span> spans;
  for (const HttpStream& stream : streams) spans.push_back(stream.span);
  return spans;
}

void Run(const Load& load) {
  spdlog::set_level(spdlog::level::off);  // the worker has a line for each stream
  rlimit files{};
  ::getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = files.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &files);
  WorkerHarness::Settings settings;
  settings.engine.step_time = load.step;
  settings.engine.limits.max_live_requests = load.streams + 8;
  settings.server.max_concurrent_streams = load.streams + 8;
  settings.server.max_open_calls = load.streams + 8;
  WorkerHarness worker(settings);
  const GatewayProcess gateway(worker.folder().string(), worker.address());
  int64_t most = 0;
  RunGateway(gateway, {.streams = 1, .tokens = 2, .step = load.step}, &most);
  const int64_t before = gateway.AnonymousBytes();
  std::vector<double> direct, through, added;
  double seconds = 0, cpu = 0;
  for (int round = 0; round < load.rounds; ++round) {
    const std::vector<double> plain = Intervals(RunDirect(worker.address(), load), load);
    const double cpu_before = gateway.CpuSeconds();
    const absl::Time begin = absl::Now();
    const std::vector<double> relayed = Intervals(RunGateway(gateway, load, &most), load);
    seconds += absl::ToDoubleSeconds(absl::Now() - begin);
    cpu += gateway.CpuSeconds() - cpu_before;
    added.push_back((Quantile(relayed, 0.5) / Quantile(plain, 0.5) - 1) * 100);
    direct.insert(direct.end(), plain.begin(), plain.end());
    through.insert(through.end(), relayed.begin(), relayed.end());
  }
  const double tokens = static_cast<double>(load.streams) * load.tokens * load.rounds;
  nlohmann::json result = {{"commit", std::string(common::kBuildRevision)},
                           {"streams", load.streams},
                           {"tokens_per_stream", load.tokens},
                           {"step_ms", absl::ToDoubleMilliseconds(load.step)},
                           {"rounds", load.rounds},
                           {"grpc", Summary(direct)},
                           {"gateway", Summary(through)},
                           {"added_itl_percent", Quantile(added, 0.5)},
                           {"added_itl_percent_of_rounds", added},
                           {"gateway_bytes_per_stream", (most - before) / load.streams},
                           {"gateway_start_ms", absl::ToDoubleMilliseconds(gateway.start_time())},
                           {"gateway_cpu_share", cpu / seconds},
                           {"gateway_cpu_us_per_token", cpu / tokens * 1e6}};
  std::printf("%s\n", result.dump(2).c_str());
}

}  // namespace
}  // namespace retroinfer

int main(int argc, char** argv) {
  retroinfer::Load load;
  if (std::getenv("RETROINFER_BENCH_SMOKE") != nullptr) {
    load = {.streams = 20, .tokens = 5, .step = absl::Milliseconds(5), .rounds = 1};
  }
  if (argc > 1) load.streams = std::max(1, std::atoi(argv[1]));
  if (argc > 2) load.tokens = std::max(2, std::atoi(argv[2]));
  if (argc > 3) load.step = absl::Milliseconds(std::max(1, std::atoi(argv[3])));
  if (argc > 4) load.rounds = std::max(1, std::atoi(argv[4]));
  retroinfer::Run(load);
}
