// Loading a model folder: seconds and GB/s of reading its weights to the device, hashed on the way
// and not, against a plain read of the same files with as many threads in the same run, with a cold
// and with a warm page cache.
//
// usage: load_weights_bench [--backend cpu|cuda] [--model llama-3.1-8b] [--layers N] [--threads 16]
//          [--folder DIR] [--cold-rounds 2] [--warm-rounds 5] [--weights-dtype bf16|fp8] [--ranks
//          1]
// With several ranks, processes as in a server with a GPU each, all load their parts at once, with
// as many threads each; rank 0 hashes all files meanwhile. Times end when the last one is done.
// Writes model files with random weights to a new folder in DIR (default: the temporary folder) and
// removes it. Prints one JSON object. "cold" drops the files from the page cache; whether the
// system below keeps them elsewhere is not its affair.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/time/clock.h"
#include "bench/support/backend.h"
#include "bench/support/measure.h"
#include "bench/support/must.h"
#include "bench/support/rank_processes.h"
#include "gpu_worker/model/channel_balance.h"
#include "gpu_worker/model/fingerprint.h"
#include "gpu_worker/model/kept_weights.h"
#include "gpu_worker/model/model_shapes.h"
#include "gpu_worker/model/model_weights.h"
#include "gpu_worker/model/shard_checkpoint.h"
#include "gpu_worker/model/shard_config.h"

namespace retroinfer {
namespace {

using bench::Fail;
using bench::Must;

constexpr size_t kPieceBytes = CheckpointHasher::kPieceBytes;
constexpr size_t kFileBytes = size_t{2} << 30;  // about what files of published models have

struct Settings {
  std::string backend = "cpu";
  std::string model = "llama-3.1-8b";
  uint32_t layers = 0;  // 0: the model's
  int threads = 16;
  std::string folder = std::filesystem::temp_directory_path().string();
  int cold_rounds = 2;
  int warm_rounds = 5;
  std::string weights_dtype = "bf16";
  int ranks = 1;
};

Settings Parse(int argc, char** argv) {
  Settings settings;
  if (bench::IsSmoke()) {
    settings.model = "tiny";
    settings.threads = 2;
    settings.cold_rounds = 1;
    settings.warm_rounds = 1;
  }
  CLI::App app;
  app.add_option("--backend", settings.backend)->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--model", settings.model);
  app.add_option("--layers", settings.layers)->check(CLI::NonNegativeNumber);
  app.add_option("--threads", settings.threads)->check(CLI::Range(1, 1'000'000'000));
  app.add_option("--folder", settings.folder);
  app.add_option("--cold-rounds", settings.cold_rounds)->check(CLI::NonNegativeNumber);
  app.add_option("--warm-rounds", settings.warm_rounds)->check(CLI::NonNegativeNumber);
  app.add_option("--weights-dtype", settings.weights_dtype)->check(CLI::IsMember({"bf16", "fp8"}));
  app.add_option("--ranks", settings.ranks)->check(CLI::Range(1, 8));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return settings;
}

// Writes the files of a checkpoint, tensors in the order of their names.
class ModelWriter {
 public:
  explicit ModelWriter(std::string folder) : folder_(std::move(folder)) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0.0f, 0.02f);
    numbers_.resize((size_t{1} << 22) + 4096);
    for (uint16_t& number : numbers_) {
      const float value = normal(random);
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof(bits));
      number = static_cast<uint16_t>(bits >> 16);
    }
    // Four-byte scales and two codes each are numbers above zero, too.
    for (uint16_t& code : codes_) code = static_cast<uint16_t>(0x3030 + random() % 0x10 * 0x0101);
  }

  void Write(const ModelConfig& config) {
    std::vector<std::pair<std::string, std::vector<int64_t>>> tensors;
    size_t bytes = 0;
    is_fp8_ = config.quantization.has_value();
    const ModelTable table(config);
    for (const auto& [name, stored] : table.stored()) {
      if (is_fp8_ && stored.may_be_rounded()) coded_.insert(name);
      const std::vector<int64_t>& shape = stored.shape;
      tensors.emplace_back(name, shape);
      bytes += BytesOf(name, shape);
      if (HasCodes(name)) tensors.emplace_back(name + kScale, std::vector<int64_t>{shape[0], 1});
      if (bytes < kFileBytes) continue;
      WriteFile(tensors);
      tensors.clear();
      bytes = 0;
    }
    if (!tensors.empty()) WriteFile(tensors);
    std::FILE* const index = Open("model.safetensors.index.json");
    const std::string text = nlohmann::json({{"weight_map", weight_map_}}).dump();
    Put(index, text.data(), text.size());
    std::fclose(index);
  }

  std::vector<std::string> paths() const { return paths_; }

 private:
  static constexpr char kScale[] = "_scale";

  bool HasCodes(const std::string& name) const { return coded_.count(name) > 0; }
  bool IsScale(const std::string& name) const { return is_fp8_ && absl::EndsWith(name, kScale); }
  size_t BytesOf(const std::string& name, const std::vector<int64_t>& shape) const {
    size_t bytes = HasCodes(name) ? 1 : IsScale(name) ? sizeof(float) : sizeof(uint16_t);
    for (const int64_t extent : shape) bytes *= static_cast<size_t>(extent);
    return bytes;
  }
  std::FILE* Open(const std::string& name) const {
    std::FILE* const file = std::fopen((folder_ + "/" + name).c_str(), "wb");
    if (file == nullptr) Fail("cannot write to " + folder_);
    return file;
  }
  static void Put(std::FILE* file, const void* data, size_t size) {
    if (std::fwrite(data, 1, size, file) != size) Fail("the disk is full, or fails");
  }
  void WriteFile(const std::vector<std::pair<std::string, std::vector<int64_t>>>& tensors) {
    const std::string name = "model-" + std::to_string(paths_.size()) + ".safetensors";
    nlohmann::json header = nlohmann::json::object();
    size_t at = 0;
    for (const auto& [tensor, shape] : tensors) {
      const size_t bytes = BytesOf(tensor, shape);
      const char* const type = HasCodes(tensor) ? "F8_E4M3" : IsScale(tensor) ? "F32" : "BF16";
      header[tensor] = {{"dtype", type}, {"shape", shape}, {"data_offsets", {at, at + bytes}}};
      weight_map_[tensor] = name;
      at += bytes;
    }
    const std::string text = header.dump();
    const uint64_t length = text.size();
    std::FILE* const file = Open(name);
    Put(file, &length, sizeof(length));
    Put(file, text.data(), text.size());
    for (const auto& [tensor, shape] : tensors) {
      const bool coded = HasCodes(tensor) || IsScale(tensor);
      for (size_t left = BytesOf(tensor, shape); left > 0;) {
        const size_t bytes = std::min(left, (size_t{1} << 22) * sizeof(uint16_t));
        // Elsewhere each time, so that no two pieces are the same.
        next_ = (next_ + 61) % 4096;
        Put(file, (coded ? codes_ : numbers_).data() + next_, bytes);
        left -= bytes;
      }
    }
    if (std::fflush(file) != 0 || ::fsync(::fileno(file)) != 0) Fail("cannot write " + name);
    std::fclose(file);
    paths_.push_back(folder_ + "/" + name);
  }

  const std::string folder_;
  bool is_fp8_ = false;
  std::set<std::string> coded_;  // names of matrices that are codes
  std::vector<uint16_t> numbers_;
  std::vector<uint16_t> codes_ = std::vector<uint16_t>((size_t{1} << 22) + 4096);
  size_t next_ = 0;
  std::vector<std::string> paths_;
  nlohmann::json weight_map_ = nlohmann::json::object();
};

// The files of a model, in a folder of their own until the end.
class ModelFiles {
 public:
  explicit ModelFiles(const Settings& settings) : config_(Must(NamedModelShape(settings.model))) {
    if (settings.layers != 0) config_.num_layers = settings.layers;
    if (settings.weights_dtype == "fp8") {
      config_.quantization = {kFp8OfFeatures, "compressed-tensors"};
    }
    folder_ = settings.folder + "/load-weights-XXXXXX";
    if (::mkdtemp(folder_.data()) == nullptr) Fail("cannot make a folder in " + settings.folder);
    ModelWriter writer(folder_);
    writer.Write(config_);
    paths_ = writer.paths();
    for (const std::string& path : paths_) bytes_ += std::filesystem::file_size(path);
  }
  ~ModelFiles() { std::filesystem::remove_all(folder_); }

  const ModelConfig& config() const { return config_; }
  const std::string& folder() const { return folder_; }
  const std::vector<std::string>& paths() const { return paths_; }
  size_t bytes() const { return bytes_; }

 private:
  ModelConfig config_;
  std::string folder_;
  std::vector<std::string> paths_;
  size_t bytes_ = 0;
};

// What one rank does; all do it at the same time.
class LoadBench {
 public:
  LoadBench(const Settings& settings, const ModelFiles& files, RankMemory& ranks)
      : settings_(settings),
        files_(files),
        config_(files.config()),
        paths_(files.paths()),
        bytes_(files.bytes()),
        ranks_(ranks),
        backend_(bench::CreateBackend(settings.backend, 0.95, ranks.parallel().rank)) {}

  nlohmann::json Run() {
    if (is_alone()) Check();
    // Opened anew: pages that are mapped stay in the page cache.
    const Checkpoint checkpoint = Must(Checkpoint::Open(files_.folder()));
    nlohmann::json json = bench::Report("load_weights", backend_.device->info());
    json["settings"] = {{"model", settings_.model},
                        {"layers", config_.num_layers},
                        {"weights_dtype", settings_.weights_dtype},
                        {"threads", settings_.threads},
                        {"ranks", settings_.ranks},
                        {"files", paths_.size()},
                        {"gib", static_cast<double>(bytes_) / (1 << 30)}};
    for (const bool cold : {true, false}) {
      const int rounds = cold ? settings_.cold_rounds : settings_.warm_rounds;
      if (rounds > 0) json[cold ? "cold" : "warm"] = Rounds(checkpoint, cold, rounds);
    }
    return json;
  }

 private:
  bool is_alone() const { return settings_.ranks == 1; }
  bool is_first() const { return ranks_.parallel().rank == 0; }

  nlohmann::json Rounds(const Checkpoint& checkpoint, bool cold, int rounds) {
    std::vector<double> plain, balance, load, hashed;
    const auto time = [&](std::vector<double>& seconds, auto&& body) {
      if (cold && is_first()) DropFromPageCache();
      Must(ranks_.Meet());
      const absl::Time begin = absl::Now();
      body();
      Must(ranks_.Meet());
      seconds.push_back(absl::ToDoubleSeconds(absl::Now() - begin));
    };
    for (int round = 0; round < rounds; ++round) {
      time(plain, [this] {
        if (is_first()) PlainRead();
      });
      time(balance, [&] {
        if (is_first()) ChannelBalance::Of(config_, checkpoint, settings_.threads);
      });
      time(load, [&] { Load(checkpoint, nullptr); });
      time(hashed, [&] { LoadAndHash(checkpoint); });
    }
    nlohmann::json part = {{"rounds", rounds}};
    const double plain_rate = Describe("plain_read", plain, part);
    // Ahead of a load; reads two matrices of each layer.
    Describe("balance", balance, part);
    part["balance"].erase("gb_per_s");
    part["load_share"] = Describe("load", load, part) / plain_rate;
    part["load_and_hash_share"] = Describe("load_and_hash", hashed, part) / plain_rate;
    return part;
  }

  // Returns GB/s of the median.
  double Describe(const std::string& name, std::vector<double> seconds, nlohmann::json& json) {
    std::sort(seconds.begin(), seconds.end());
    const double median = seconds[seconds.size() / 2];
    const double rate = static_cast<double>(bytes_) / 1e9 / median;
    json[name] = {{"seconds_median", median},
                  {"seconds_min", seconds.front()},
                  {"seconds_max", seconds.back()},
                  {"gb_per_s", rate}};
    return rate;
  }

  // Of this rank.
  ModelWeights Load(const Checkpoint& checkpoint, CheckpointHasher* hasher) {
    const ModelConfig config = Must(ShardConfig(config_, ranks_.parallel()));
    std::optional<Checkpoint> part;
    if (config.shard.has_value()) part = Must(ShardCheckpoint(config_, config, checkpoint));
    return Must(LoadModelWeights(
        *backend_.device, backend_.ops->model(), config, part.has_value() ? *part : checkpoint,
        {.source = WeightSource::kReading, .num_threads = settings_.threads, .hasher = hasher}));
  }

  // As the worker does it.
  void LoadAndHash(const Checkpoint& checkpoint) {
    if (is_alone()) {
      CheckpointHasher hasher(checkpoint);
      Load(checkpoint, &hasher);
      Must(hasher.Finish(config_).status());
      return;
    }
    std::thread hashing([&] {
      if (!is_first()) return;
      Must(ModelFingerprint(config_, checkpoint,
                            {.num_threads = backend_.device->info().num_processors})
               .status());
    });
    Load(checkpoint, nullptr);
    hashing.join();
  }

  // What is on the device and what was hashed are what the mapped files hold.
  void Check() {
    const Checkpoint checkpoint = Must(Checkpoint::Open(files_.folder()));
    CheckpointHasher hasher(checkpoint);
    const ModelWeights weights = Load(checkpoint, &hasher);
    const auto expected = ModelFingerprint(config_, checkpoint, {.num_threads = settings_.threads});
    if (Must(hasher.Finish(config_)) != Must(expected)) Fail("the fingerprint is not right");
    const HostTensor& embedding = checkpoint.tensors().at("model.embed_tokens.weight");
    std::vector<std::byte> loaded(embedding.stored.size());
    Must(backend_.device->Download(*backend_.stream, weights.embedding_buffer.bytes(), loaded));
    Must(backend_.stream->Synchronize());
    if (!std::equal(loaded.begin(), loaded.end(), embedding.stored.begin())) {
      Fail("the embedding is not what its file holds");
    }
  }

  void DropFromPageCache() {
    for (const std::string& path : paths_) {
      const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
      if (fd < 0 || ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) != 0)
        Fail("cannot drop " + path);
      ::close(fd);
    }
  }

  // Reads all files in pieces of the same size, with as many threads, into memory that was touched.
  void PlainRead() {
    struct Piece {
      int fd;
      off_t offset;
    };
    std::vector<Piece> pieces;
    std::vector<int> files;
    for (const std::string& path : paths_) {
      files.push_back(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
      if (files.back() < 0) Fail("cannot open " + path);
      const auto size = static_cast<off_t>(std::filesystem::file_size(path));
      for (off_t at = 0; at < size; at += kPieceBytes) pieces.push_back({files.back(), at});
    }
    std::atomic<size_t> next = 0, total = 0;
    const auto read = [&] {
      std::vector<char> memory(kPieceBytes);
      for (size_t i = next++; i < pieces.size(); i = next++) {
        const ssize_t count = ::pread(pieces[i].fd, memory.data(), memory.size(), pieces[i].offset);
        if (count <= 0) Fail("a plain read failed");
        total += static_cast<size_t>(count);
      }
    };
    std::vector<std::thread> threads;
    for (int i = 0; i < settings_.threads; ++i) threads.emplace_back(read);
    for (std::thread& thread : threads) thread.join();
    for (const int file : files) ::close(file);
    if (total != bytes_) Fail("a plain read was short");
  }

  const Settings& settings_;
  const ModelFiles& files_;
  const ModelConfig& config_;
  const std::vector<std::string>& paths_;
  const size_t bytes_;
  RankMemory& ranks_;
  test_support::Backend backend_;
};

}  // namespace
}  // namespace retroinfer

int main(int argc, char** argv) {
  using namespace retroinfer;
  const Settings settings = Parse(argc, argv);
  const ModelFiles files(settings);
  return bench::RunRankProcesses(settings.ranks, [&](RankMemory& ranks) {
    const nlohmann::json report = LoadBench(settings, files, ranks).Run();
    if (ranks.parallel().rank == 0) bench::Print(report);
  });
}
