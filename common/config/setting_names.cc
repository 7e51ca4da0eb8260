#include "common/config/setting_names.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"

namespace retroinfer::common {
namespace {

constexpr char kPrefix[] = "RETROINFER_";

// Long options of all programs and commands; tests/programs/help_test.py compares it with
// what their --help says.
constexpr std::string_view kNames[] = {
    // clang-format off
    "activations-dtype", "address", "adopt-wait", "api-key-file", "arena-bytes", "billing-header", "bin-dir", "block-cache-bytes",
    "cache-bytes", "cache-dir", "cache-high-watermark", "cache-low-watermark", "cache-optional",
    "cache-salt", "cache-tenant-bytes", "cache-ttl", "chat", "chat-template", "check-settings", "compute-dtype",
    "config", "context", "context-affinity", "cors-origin", "default-max-tokens", "dense-below",
    "dense-kv-bytes", "device", "draft-model", "drain-timeout", "estimation-ratio", "file", "force",
    "free-slots-high", "free-slots-low", "frequency-penalty", "gone", "gpu-memory",
    "gpu-memory-utilization", "host-memory", "http", "http-keepalive-interval", "http-max-body-bytes", "http-max-connections",
    "http-max-generations", "http-metrics-address", "ignore-eos", "index-dtype", "input-len",
    "inter-token-latency-target", "json", "json-file", "keepalive-interval", "kv-dtype",
    "listen", "live", "load-format", "load-seed", "log-file", "log-format", "log-level",
    "logit-bias", "max-batch", "max-body-bytes", "max-concurrency", "max-concurrent-streams", "max-connections", "max-expected-wait",
    "max-generations", "max-model-len", "max-open-calls", "max-queued-requests", "max-tokens", "max-unseen-mass", "max-waiting-tokens", "max-whole-prompt", "memory",
    "metrics-address", "min-p", "min-tokens", "model", "model-shape", "n", "name",
    "num-prompts", "out", "output-len", "page", "parse-special", "persist", "pin", "policy", "prediction", "preemption", "prefill", "prefix-len",
    "presence-penalty", "priority", "quality", "quiet", "rank-timeout", "raw", "record-trace", "record-trace-bytes", "repetition-penalty", "request-id", "request-rate",
    "reserve", "restarts", "restore-threads", "result-file", "retries", "retrieval", "retrieval-ratio", "reuse", "rope-scaling", "seed", "segments",
    "served-model-name", "service", "show-log", "slo-first-token", "slo-per-token",
    "socket-dir", "some-name", "speculation", "stop", "strict-parameters", "stride", "streaming-window", "suspended-kv-bytes",
    "store-metrics-address", "synthetic-context", "synthetic-overlap", "system", "tail-run", "tail-tokens", "temperature",
    "target-change", "target-perplexity", "tenant", "tenants-file", "tensor-parallel", "text",
    "threads", "timeout", "tls-ca", "tls-certificate", "tls-client-ca", "tls-key",
    "tls-server-name", "tokens", "tool-call-parser", "top-k", "top-p", "ttl", "users", "wait", "wave-index", "weights-dtype", "window", "windows",
    "worker", "worker-api-key-file", "worker-tls-ca", "worker-tls-certificate", "worker-tls-key",
    "worker-tls-server-name", "workload",
    // clang-format on
};

// Variables that stand for an option under a name of their own (Settings::NameVariable).
constexpr std::string_view kVariables[] = {
    "RETROINFER_CLIENT_TLS_CERTIFICATE",
    "RETROINFER_CLIENT_TLS_KEY",
    "RETROINFER_HEALTH_TIMEOUT",
    "RETROINFER_STORE_LISTEN",
};

constexpr std::string_view kTestPrefixes[] = {"RETROINFER_TEST_", "RETROINFER_BENCH_",
                                              "RETROINFER_CHAOS_", "RETROINFER_CRASH_",
                                              "RETROINFER_DISK_"};

// RETROINFER_SERVICE_HOST, RETROINFER_PORT_50051_TCP=tcp://10.0.0.1:50051,
// RETROINFER_PORT=tcp://...
bool IsServiceLink(std::string_view name, std::string_view value) {
  const std::string text(name);
  return absl::EndsWith(text, "_SERVICE_HOST") || absl::StrContains(text, "_SERVICE_PORT") ||
         (absl::StrContains(text, "_PORT") &&
          (absl::StrContains(text, "_TCP") || absl::StrContains(std::string(value), "://")));
}

// Insertions, deletions, exchanges of one character, and of two neighbours, that lead from `a` to
// `b`.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> before;
  std::vector<size_t> above(b.size() + 1);
  std::iota(above.begin(), above.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    std::vector<size_t> row(b.size() + 1, i);
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    before = std::exchange(above, std::move(row));
  }
  return above.back();
}

}  // namespace

std::string VariableName(std::string_view name) {
  return kPrefix + absl::AsciiStrToUpper(absl::StrReplaceAll(std::string(name), {{"-", "_"}}));
}

bool IsSettingName(std::string_view name) {
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

std::vector<std::string> KnownVariables() {
  std::vector<std::string> variables;
  for (const std::string_view name : kNames) variables.push_back(VariableName(name));
  variables.insert(variables.end(), std::begin(kVariables), std::end(kVariables));
  return variables;
}

bool IsExpectedVariable(std::string_view name, std::string_view value) {
  const std::string text(name);
  if (!absl::StartsWith(text, kPrefix) || IsServiceLink(name, value)) return true;
  for (const std::string_view prefix : kTestPrefixes) {
    if (absl::StartsWith(text, std::string(prefix))) return true;
  }
  const std::vector<std::string> known = KnownVariables();
  return std::find(known.begin(), known.end(), text) != known.end();
}

std::string NearestName(std::string_view name, const std::vector<std::string>& names) {
  if (name.size() > 100) return "";
  // With more than a third of its characters wrong it is another word.
  size_t least = std::max<size_t>(2, name.size() / 3) + 1;
  std::string nearest;
  for (const std::string& candidate : names) {
    const size_t distance = EditDistance(name, candidate);
    if (distance >= least) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

}  // namespace retroinfer::common
