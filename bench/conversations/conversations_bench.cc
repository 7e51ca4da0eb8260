// How much of conversations is recomputed: tokens of each turn's prompt that the engine did not
// find cached, against the fewest possible, those that no turn before has computed behind the same
// tokens; and the time to first token. Both services in this process, random weights, one
// conversation at a time, each answer being what the engine has generated.
//
// usage: conversations_bench [--device cpu|cuda] [--model tiny] [--policy wave|full]
//          [--reuse exact,generated] [--kinds document_short,chat] [--scale 1.0] [--turns 100]
//          [--arena-gib 0] [--kv-dtype auto] [--weights-dtype auto]
// Prints one JSON object. Means and medians are of all turns but the first, of which nothing could
// be cached. With reuse `exact` answers are computed again: the fewest are counted accordingly.
// --scale: of all lengths; segments keep theirs. --turns: at most, of each kind. --arena-gib 0: for
// the longest conversation. With RETROINFER_BENCH_SMOKE, a small run that exits with 1 where more
// is recomputed than kMostRecomputed times the fewest.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "bench/conversations/both_services.h"
#include "bench/conversations/conversation.h"
#include "bench/conversations/conversation_kinds.h"
#include "bench/support/measure.h"
#include "bench/support/must.h"
#include "gpu_worker/model/model_shapes.h"

namespace retroinfer::bench {
namespace {

// Of keys and values as they lie in the arena, with centroids, half-full pages and segments that
// wait to be evicted.
constexpr double kArenaPerKvByte = 2;
constexpr double kMostRecomputed = 1.3;  // times the fewest

struct Settings {
  std::string device = "cpu";
  std::string model = "tiny";
  std::string policy = "wave";
  std::vector<std::string> reuse = {"exact", "generated"};  // KvReuse
  std::vector<std::string> kinds;                           // empty: all
  double scale = 1;
  int64_t turns = 100;
  int64_t arena_gib = 0;
  std::string kv_dtype = "auto";
  std::string weights_dtype = "auto";
};

Settings Parse(int argc, char** argv) {
  Settings settings;
  if (IsSmoke()) {
    settings.scale = 0.5;
    settings.turns = 4;
  }
  CLI::App app;
  app.add_option("--device", settings.device)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--model", settings.model);
  app.add_option("--policy", settings.policy)->check(CLI::IsMember({"wave", "full"}));
  app.add_option("--reuse", settings.reuse)
      ->delimiter(',')
      ->check(CLI::IsMember({"exact", "generated"}));
  app.add_option("--kinds", settings.kinds)->delimiter(',');
  app.add_option("--scale", settings.scale)->check(CLI::Range(0.01, 10.0));
  app.add_option("--turns", settings.turns)->check(CLI::Range(2, 1000));
  app.add_option("--arena-gib", settings.arena_gib)->check(CLI::Range(0, 4096));
  app.add_option("--kv-dtype", settings.kv_dtype);
  app.add_option("--weights-dtype", settings.weights_dtype);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return settings;
}

std::vector<ConversationKind> ChosenKinds(const Settings& settings) {
  std::vector<ConversationKind> kinds = ConversationKinds(settings.scale, settings.turns);
  for (const std::string& name : settings.kinds) {
    if (std::none_of(kinds.begin(), kinds.end(), [&](const auto& k) { return k.name == name; })) {
      Fail("no kind " + name + "; there are those of conversation_kinds.cc");
    }
  }
  std::erase_if(kinds, [&](const ConversationKind& kind) {
    return !settings.kinds.empty() && std::find(settings.kinds.begin(), settings.kinds.end(),
                                                kind.name) == settings.kinds.end();
  });
  return kinds;
}

uint64_t ArenaBytes(const Settings& settings, const std::vector<ConversationKind>& kinds) {
  if (settings.arena_gib > 0) return static_cast<uint64_t>(settings.arena_gib) << 30;
  const ModelConfig config = Must(NamedModelShape(settings.model));
  const double kv_bytes = 2.0 * 2.0 * static_cast<double>(config.num_layers) *
                          static_cast<double>(config.num_kv_heads * config.head_dim);
  int64_t most = 0;
  for (const ConversationKind& kind : kinds) {
    most = std::max(most, kind.longest() + kind.generated());
  }
  const double bytes = kArenaPerKvByte * kv_bytes * static_cast<double>(most);
  return std::max(uint64_t{256} << 20, static_cast<uint64_t>(bytes));
}

ServedEngineOptions EngineOptions(const Settings& settings,
                                  const std::vector<ConversationKind>& kinds) {
  ServedEngineOptions options;
  options.device = settings.device;
  options.model_shape = settings.model;
  options.kv_dtype = settings.kv_dtype;
  options.weights_dtype = settings.weights_dtype;
  options.num_threads = NumThreads();
  options.max_batch = 2;
  for (const ConversationKind& kind : kinds) {
    options.max_model_len = std::max(options.max_model_len, kind.longest() + 1);
  }
  return options;
}

// Means of the turns behind the first one.
struct Summary {
  double prompt_tokens = 0, recomputed = 0, fewest = 0, fewest_exact = 0;
  std::vector<double> first_token_s;  // of those turns, in their order
  double ratio(KvReuse reuse) const {
    return recomputed / (reuse == KvReuse::kExact ? fewest_exact : fewest);
  }
};

Summary Summarize(const std::vector<ConversationTurn>& turns) {
  Summary summary;
  const auto count = static_cast<double>(turns.size() - 1);
  for (size_t i = 1; i < turns.size(); ++i) {
    summary.prompt_tokens += static_cast<double>(turns[i].prompt_tokens) / count;
    summary.recomputed += static_cast<double>(turns[i].recomputed) / count;
    summary.fewest += static_cast<double>(turns[i].fewest) / count;
    summary.fewest_exact += static_cast<double>(turns[i].fewest_exact) / count;
    summary.first_token_s.push_back(turns[i].first_token_s);
  }
  return summary;
}

nlohmann::json ToJson(const Summary& summary, KvReuse reuse,
                      const std::vector<ConversationTurn>& turns) {
  std::vector<double> sorted = summary.first_token_s;
  std::sort(sorted.begin(), sorted.end());
  nlohmann::json each = nlohmann::json::array();
  for (const ConversationTurn& turn : turns) {
    each.push_back({turn.prompt_tokens, turn.recomputed, turn.fewest, turn.first_token_s});
  }
  return {{"turns", turns.size()},
          {"prompt_tokens_mean", summary.prompt_tokens},
          {"recomputed_tokens_mean", summary.recomputed},
          {"fewest_tokens_mean", summary.fewest},
          {"fewest_exact_tokens_mean", summary.fewest_exact},
          {"recomputed_over_fewest", summary.ratio(reuse)},
          {"first_token_s_p50", sorted[sorted.size() / 2]},
          {"first_token_s_max", sorted.back()},
          {"first_turn_first_token_s", turns.front().first_token_s},
          {"each_prompt_recomputed_fewest_seconds", each}};
}

// Holds a conversation, and returns whether no more was recomputed than is good.
bool Measure(BothServices& services, const ConversationKind& kind,
             const ConversationSettings& conversation, nlohmann::json& report) {
  const auto turns = HoldConversation(services.engine(), kind, conversation);
  const Summary summary = Summarize(turns);
  const double ratio = summary.ratio(conversation.reuse);
  report = ToJson(summary, conversation.reuse, turns);
  const std::string name(kind.name);
  std::fprintf(stderr,
               "%-15s %2zu turns: of %7.0f tokens %7.0f recomputed, %.2f times the fewest; first "
               "token after %.3f s\n",
               name.c_str(), turns.size(), summary.prompt_tokens, summary.recomputed, ratio,
               report["first_token_s_p50"].get<double>());
  if (ratio <= kMostRecomputed) return true;
  std::fprintf(stderr, "%s: more than %.2f times the fewest\n", name.c_str(), kMostRecomputed);
  return false;
}

// Returns the program's exit status.
int Run(const Settings& settings) {
  const std::vector<ConversationKind> kinds = ChosenKinds(settings);
  BothServices services(EngineOptions(settings, kinds), ArenaBytes(settings, kinds));
  ConversationSettings conversation{.attention = services.model().default_attention,
                                    .vocab_size = services.model().vocab_size};
  conversation.attention.policy = *PolicyOfName(settings.policy);
  nlohmann::json report = Report("conversations", services.device());
  report["settings"] = {{"model", settings.model},
                        {"policy", settings.policy},
                        {"scale", settings.scale},
                        {"kv_dtype", services.model().kv_dtype},
                        {"weights_dtype", services.model().weights_dtype}};
  bool is_good = true;
  for (const std::string& reuse : settings.reuse) {
    std::fprintf(stderr, "reuse %s\n", reuse.c_str());
    conversation.reuse = reuse == "exact" ? KvReuse::kExact : KvReuse::kGenerated;
    for (const ConversationKind& kind : kinds) {
      is_good &= Measure(services, kind, conversation, report[reuse][std::string(kind.name)]);
    }
  }
  Print(report);
  return is_good || !IsSmoke() ? 0 : 1;
}

}  // namespace
}  // namespace retroinfer::bench

int main(int argc, char** argv) {
  return retroinfer::bench::Run(retroinfer::bench::Parse(argc, argv));
}
