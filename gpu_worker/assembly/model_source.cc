#include "gpu_worker/assembly/model_source.h"

#include <algorithm>
#include <future>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/status/status_macros.h"
#include "gpu_worker/model/channel_balance.h"
#include "gpu_worker/model/model_shapes.h"
#include "gpu_worker/model/model_table.h"
#include "gpu_worker/model/random_weights.h"
#include "gpu_worker/model/rope_scaling.h"
#include "gpu_worker/model/shard_checkpoint.h"
#include "gpu_worker/model/shard_config.h"
#include "gpu_worker/model/stacked_experts.h"
#include "gpu_worker/model/stored_model.h"
#include "spdlog/spdlog.h"
#include "text/tokenizer/byte_tokenizer.h"

namespace retroinfer {
namespace {

// As many as the host has cores, with which a disk of today is busy.
int ReadingThreads() {
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 2u, 16u));
}

// A line whenever another tenth is loaded, at most one a second: a small model has none.
class LoadingLog {
 public:
  void Note(size_t done, size_t total) {
    const int tenth = static_cast<int>(done * 10 / std::max<size_t>(1, total));
    const absl::Time now = absl::Now();
    if (tenth == last_tenth_ || now - last_line_ < absl::Seconds(1)) return;
    last_tenth_ = tenth;
    last_line_ = now;
    const double seconds = absl::ToDoubleSeconds(now - begin_);
    spdlog::info("weights: {} of {} MiB, {:.2f} GB/s", done >> 20, total >> 20,
                 static_cast<double>(done) / 1e9 / std::max(seconds, 1e-9));
  }

 private:
  const absl::Time begin_ = absl::Now();
  absl::Time last_line_ = begin_;
  int last_tenth_ = -1;
};

}  // namespace

absl::StatusOr<ModelSource> ModelSource::Open(const ServedEngineOptions& options) {
  ModelSource source;
  RETURN_IF_ERROR(options.load_format == "dummy" ? source.OpenDummy(options)
                                                 : source.OpenModel(options));
  ASSIGN_OR_RETURN(source.keep_, KeptWeightsNamed(options.weights_dtype, source.config_,
                                                  options.activations_dtype));
  const int32_t num_tokens = source.tokenizer_->vocab_size();
  if (num_tokens > source.config_.vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        source.name_, ": the tokenizer has ", num_tokens, " tokens, the model's vocabulary ",
        source.config_.vocab_size, ": they do not belong together"));
  }
  return source;
}

absl::Status ModelSource::OpenModel(const ServedEngineOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<StoredModel> model,
                   StoredModel::Open(options.model_folder));
  name_ = model->name();
  ASSIGN_OR_RETURN(config_, model->ReadConfig());
  RETURN_IF_ERROR(ApplyRopeScaling(options.rope_scaling, config_));
  ServeContexts(options.max_model_len, config_);
  ASSIGN_OR_RETURN(generation_, model->ReadGeneration(config_));
  ASSIGN_OR_RETURN(tokenizer_, model->ReadTokenizer());
  ASSIGN_OR_RETURN(checkpoint_, model->OpenWeights(config_));
  TakeStoredType(*checkpoint_, config_);
  return absl::OkStatus();
}

absl::Status ModelSource::OpenDummy(const ServedEngineOptions& options) {
  std::unique_ptr<StoredModel> model;
  if (!options.model_folder.empty()) {
    ASSIGN_OR_RETURN(model, StoredModel::Open(options.model_folder));
  }
  if (options.model_shape.empty()) {
    if (model == nullptr) return absl::InvalidArgumentError("--model or --model-shape is missing");
    name_ = model->name();
    ASSIGN_OR_RETURN(config_, model->ReadConfig());
    ASSIGN_OR_RETURN(generation_, model->ReadGeneration(config_));
  } else {
    name_ = options.model_shape;
    ASSIGN_OR_RETURN(config_, NamedModelShape(options.model_shape));
  }
  RETURN_IF_ERROR(ApplyRopeScaling(options.rope_scaling, config_));
  int64_t longest = options.max_model_len;
  if (longest == 0 && options.synthetic_context != 0) longest = kSyntheticRequestTokens;
  config_.context_length = std::max(config_.context_length, options.synthetic_context + longest);
  ServeContexts(options.max_model_len, config_);

  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = absl::NotFoundError("no model");
  if (model != nullptr) tokenizer = model->ReadTokenizer();
  if (absl::IsNotFound(tokenizer.status())) {
    spdlog::info("no tokenizer: each byte of a text is a token");
    tokenizer = CreateByteTokenizer();
  }
  RETURN_IF_ERROR(tokenizer.status());
  tokenizer_ = *std::move(tokenizer);
  return absl::OkStatus();
}

size_t ModelSource::WeightBytes(const BackendNeeds& needs) const {
  return checkpoint_.has_value() ? KeptWeightBytes(config_, *checkpoint_, keep_, needs)
                                 : KeptRandomWeightBytes(config_, keep_, needs);
}

absl::StatusOr<size_t> ModelSource::WeightBytesOf(const TensorParallel& parallel,
                                                  const BackendNeeds& needs) const {
  ASSIGN_OR_RETURN(const ModelConfig config, ShardConfig(config_, parallel));
  if (!config.shard.has_value()) return WeightBytes(needs);
  if (!checkpoint_.has_value()) return KeptRandomWeightBytes(config, keep_, needs);
  RETURN_IF_ERROR(CheckTensors(config_, *checkpoint_));
  ASSIGN_OR_RETURN(const Checkpoint part, ShardCheckpoint(config_, config, *checkpoint_));
  return KeptWeightBytes(config, part, keep_, needs);
}

absl::StatusOr<ModelSource::Loaded> ModelSource::Load(Device& device, ModelOps& ops,
                                                      WeightSource weight_source,
                                                      const KvFormat& kv_format,
                                                      const LoadProgress& progress,
                                                      const TensorParallel& parallel) const {
  if (checkpoint_.has_value()) {
    if (checkpoint_->is_coded()) weight_source = WeightSource::kReading;
    return LoadCheckpoint(device, ops, weight_source, kv_format, progress, parallel);
  }
  spdlog::info("random weights: what is generated means nothing");
  Loaded loaded;
  loaded.fingerprint = RandomModelFingerprint(config_, keep_);
  ASSIGN_OR_RETURN(loaded.weights, RandomModelWeights(device, ops, config_, keep_, parallel));
  return loaded;
}

namespace {

// Progress of hashing and of loading, which go on beside each other: each is half of the work.
//
// Threads: any.
class JointProgress {
 public:
  explicit JointProgress(const LoadProgress& progress) : progress_(progress) {}

  void NoteHashed(size_t done, size_t total) { Note(hashed_, done, total); }
  void NoteLoaded(size_t done, size_t total) { Note(loaded_, done, total); }

 private:
  static constexpr size_t kHalf = 1000;

  void Note(size_t& part, size_t done, size_t total) {
    if (!progress_) return;
    absl::MutexLock lock(&mutex_);
    part = done * kHalf / std::max<size_t>(1, total);
    progress_(hashed_ + loaded_, 2 * kHalf);
  }

  const LoadProgress& progress_;
  absl::Mutex mutex_;  // held while progress is told
  size_t hashed_ = 0;  // of kHalf
  size_t loaded_ = 0;
};

// Says what of a folder is not served as it is, if anything.
void NoteOtherParts(const ModelConfig& config, const Checkpoint& checkpoint) {
  if (const std::string_view note = NoteOfUnstacking(config); !note.empty()) {
    spdlog::info("{}", note);
  }
  const ModelTable table(config);
  const auto is_other = [&table](const auto& entry) { return table.IsOtherPart(entry.first); };
  const auto count =
      std::count_if(checkpoint.tensors().begin(), checkpoint.tensors().end(), is_other);
  if (count == 0) return;
  spdlog::info(
      "{} tensors are of the part of the model that sees images, and have no effect: text "
      "is served",
      count);
}

}  // namespace

absl::StatusOr<ModelSource::Loaded> ModelSource::LoadCheckpoint(
    Device& device, ModelOps& ops, WeightSource weight_source, const KvFormat& kv_format,
    const LoadProgress& progress, const TensorParallel& parallel) const {
  Loaded loaded;
  CheckpointHasher hasher(*checkpoint_);
  // What a rank reads is not all.
  const bool is_read_apart = weight_source == WeightSource::kMapping || !parallel.is_all();
  const bool hash_apart = is_read_apart && parallel.rank == 0;
  const absl::Time begin = absl::Now();
  ASSIGN_OR_RETURN(const ModelConfig config, ShardConfig(config_, parallel));
  RETURN_IF_ERROR(CheckTensors(config_, *checkpoint_));
  NoteOtherParts(config_, *checkpoint_);
  const Checkpoint* checkpoint = &*checkpoint_;
  std::optional<Checkpoint> part;
  if (config.shard.has_value()) {
    ASSIGN_OR_RETURN(part, ShardCheckpoint(config_, config, *checkpoint_));
    checkpoint = &*part;
  }
  const ChannelBalance balance = ChannelBalance::Of(config_, *checkpoint_, ReadingThreads());
  if (!balance.is_identity()) {
    spdlog::info("{} of {} pairs of channels of queries and keys are balanced by powers of two",
                 balance.num_changed(), balance.num_pairs());
  }
  RETURN_IF_ERROR(CheckBiases(balance.largest_bias(), kv_format));
  JointProgress both(progress);
  std::future<absl::StatusOr<Fingerprint>> fingerprint;
  if (hash_apart) {
    // Beside the load: what both read comes from the disk once. Behind it, where the system has no
    // thread to give.
    fingerprint = std::async(std::launch::async | std::launch::deferred, [&] {
      return ModelFingerprint(
          config_, *checkpoint_,
          {.num_threads = device.info().num_processors,
           .progress = [&both](size_t done, size_t total) { both.NoteHashed(done, total); },
           .keep = keep_,
           .balance = &balance});
    });
  }
  LoadingLog log;
  const auto note = [&](size_t done, size_t total) {
    log.Note(done, total);
    if (hash_apart) {
      both.NoteLoaded(done, total);
    } else if (progress) {
      progress(done, total);
    }
  };
  ASSIGN_OR_RETURN(loaded.weights,
                   LoadModelWeights(device, ops, config, *checkpoint,
                                    {.source = weight_source,
                                     .num_threads = ReadingThreads(),
                                     .hasher = is_read_apart ? nullptr : &hasher,
                                     .progress = note},
                                    keep_, part.has_value() ? balance.Of(*config.shard) : balance));
  if (hash_apart) {
    ASSIGN_OR_RETURN(loaded.fingerprint, fingerprint.get());
  } else if (!is_read_apart) {
    ASSIGN_OR_RETURN(loaded.fingerprint, hasher.Finish(config_, keep_, &balance));
  }
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  spdlog::info("{} MiB of weights loaded and hashed in {:.1f} s: {:.2f} GB/s",
               checkpoint->total_bytes() >> 20, seconds,
               static_cast<double>(checkpoint->total_bytes()) / 1e9 / std::max(seconds, 1e-9));
  return loaded;
}

}  // namespace retroinfer
