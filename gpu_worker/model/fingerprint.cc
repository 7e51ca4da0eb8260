// Each tensor is cut into pieces of CheckpointHasher::kPieceBytes. The digest of a tensor covers
// its name, type and shape and the digests of its pieces in order; the model's covers the config
// and the tensors' digests in order of their names. So the result does not depend on threads or
// files.
#include "gpu_worker/model/fingerprint.h"

#include <openssl/evp.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/log/check.h"
#include "gpu_worker/model/model_table.h"

namespace retroinfer {
namespace {

constexpr int64_t kFormatVersion = 2;

// Calls `work` on `count` threads, this one among them.
template <typename Work>
void RunOnThreads(int count, const Work& work) {
  std::vector<std::thread> threads;
  for (int i = 1; i < count; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

// What layers are, where they are not what all were when the format was made.
void AddLayers(const ModelConfig& config, FingerprintBuilder& builder) {
  for (uint32_t layer = 0; layer < config.num_layers; ++layer) {
    const LayerSpec spec = LayerOf(config, layer);
    if (spec.rope && spec.attention == AttentionKind::kFull &&
        spec.feed_forward == FeedForwardKind::kDense) {
      continue;
    }
    builder.AddInt("layer", layer);
    builder.AddInt("attention", static_cast<int64_t>(spec.attention));
    builder.AddInt("feed_forward", static_cast<int64_t>(spec.feed_forward));
    builder.AddInt("has_rope", spec.rope);
  }
}

void AddRope(const RopeConfig& rope, FingerprintBuilder& builder) {
  builder.AddInt("rope.type", static_cast<int64_t>(rope.type));
  builder.AddDouble("rope.theta", rope.theta);
  builder.AddDouble("rope.factor", rope.factor);
  builder.AddDouble("rope.low_freq_factor", rope.low_freq_factor);
  builder.AddDouble("rope.high_freq_factor", rope.high_freq_factor);
  builder.AddInt("rope.original_positions", rope.original_positions);
  builder.AddDouble("rope.beta_fast", rope.beta_fast);
  builder.AddDouble("rope.beta_slow", rope.beta_slow);
  builder.AddInt("rope.truncate", rope.truncate);
  builder.AddDouble("rope.attention_factor", rope.attention_factor);
}

// What most models do not have, where it is.
void AddExceptions(const ModelConfig& config, FingerprintBuilder& builder) {
  const RopeConfig& rope = config.rope;
  const auto add = [&builder](const char* name, double value, double usual) {
    if (value != usual) builder.AddDouble(name, value);
  };
  add("rope.rotated_part", rope.rotated_part, 1);
  add("rope.query_growth", rope.query_growth, 0);
  if (rope.type == RopeConfig::Type::kLong) {
    for (const double factor : rope.serves_long ? rope.long_factors : rope.short_factors) {
      builder.AddDouble("rope.factor_of_pair", factor);
    }
  }
  if (config.stored_head_dim != 0) builder.AddInt("stored_head_dim", config.stored_head_dim);
  if (config.score_scale.has_value()) builder.AddDouble("score_scale", *config.score_scale);
  add("embedding_multiplier", config.embedding_multiplier, 1);
  add("residual_multiplier", config.residual_multiplier, 1);
  // The windows themselves are in the fingerprint of segments.
  if (config.sinks) builder.AddInt("sinks", 1);
  if (config.window_rope.has_value()) {
    builder.AddInt("window_rope", 1);
    AddRope(*config.window_rope, builder);
  }
}

void AddConfig(const ModelConfig& config, KeptWeights keep, FingerprintBuilder& builder) {
  builder.AddInt("family", static_cast<int64_t>(config.family));
  builder.AddInt("hidden_size", config.hidden_size);
  builder.AddInt("intermediate_size", config.intermediate_size);
  builder.AddInt("num_layers", config.num_layers);
  builder.AddInt("num_query_heads", config.num_query_heads);
  builder.AddInt("num_kv_heads", config.num_kv_heads);
  builder.AddInt("head_dim", config.head_dim);
  builder.AddInt("vocab_size", config.vocab_size);
  builder.AddDouble("rms_norm_epsilon", config.rms_norm_epsilon);
  builder.AddInt("tie_word_embeddings", config.tie_word_embeddings);
  builder.AddInt("qkv_bias", config.qkv_bias);
  builder.AddInt("qk_norm", config.qk_norm);
  AddRope(config.rope, builder);
  if (config.quantization.has_value()) {
    const StoredForm& form = config.quantization->form;
    builder.AddInt("scaled_part", static_cast<int64_t>(form.part));
    // The first form was the only one when the format was made.
    if (form.form.id != WeightFormId::kE4m3) {
      builder.AddInt("weight_form", static_cast<int64_t>(form.form.id));
      builder.AddInt("zeros_add", form.zeros_add);
    }
  }
  AddLayers(config, builder);
  AddExceptions(config, builder);
  if (config.experts.count > 0) {
    builder.AddInt("experts", config.experts.count);
    builder.AddInt("experts_per_token", config.experts.per_token);
    builder.AddInt("experts_sum_to_one", config.experts.weights_sum_to_one);
  }
  if (keep != KeptWeights::kAsStored) builder.AddInt("kept_weights", static_cast<int64_t>(keep));
}

Fingerprint TensorFingerprint(const std::string& name, const HostTensor& tensor,
                              std::span<const Fingerprint> pieces) {
  FingerprintBuilder builder;
  builder.AddBytes("name", std::as_bytes(std::span(name)));
  builder.AddInt("dtype", static_cast<int64_t>(tensor.type));
  for (const int64_t extent : tensor.shape) builder.AddInt("extent", extent);
  for (const Fingerprint& piece : pieces) builder.AddFingerprint("piece", piece);
  return builder.Finish();
}

}  // namespace

struct FingerprintBuilder::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
  // SHA-256 of bytes in memory has no way to fail but lack of memory.
  void Update(const void* data, size_t size) {
    RI_CHECK(EVP_DigestUpdate(context, data, size) == 1);
  }
};

FingerprintBuilder::FingerprintBuilder() : state_(std::make_unique<State>()) {
  RI_CHECK(EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1);
}

FingerprintBuilder::~FingerprintBuilder() = default;

void FingerprintBuilder::AddBytes(const std::string& name, std::span<const std::byte> value) {
  static_assert(std::endian::native == std::endian::little);
  const auto name_size = static_cast<uint32_t>(name.size());
  const auto value_size = static_cast<uint64_t>(value.size());
  state_->Update(&name_size, sizeof(name_size));
  state_->Update(name.data(), name.size());
  state_->Update(&value_size, sizeof(value_size));
  state_->Update(value.data(), value.size());
}

void FingerprintBuilder::AddInt(const std::string& name, int64_t value) {
  AddBytes(name, std::as_bytes(std::span(&value, 1)));
}

void FingerprintBuilder::AddDouble(const std::string& name, double value) {
  AddBytes(name, std::as_bytes(std::span(&value, 1)));
}

void FingerprintBuilder::AddFingerprint(const std::string& name, const Fingerprint& value) {
  AddBytes(name, std::as_bytes(std::span(value)));
}

Fingerprint FingerprintBuilder::Finish() {
  Fingerprint digest;
  unsigned int size = 0;
  RI_CHECK(EVP_DigestFinal_ex(state_->context, digest.data(), &size) == 1);
  RI_CHECK(size == digest.size());
  return digest;
}

std::string FingerprintHex(const Fingerprint& fingerprint) {
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(fingerprint.data()), fingerprint.size()));
}

CheckpointHasher::CheckpointHasher(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    const size_t count = (tensor.num_bytes() + kPieceBytes - 1) / kPieceBytes;
    pieces_[name].resize(count);
    num_pieces_ += count;
  }
}

void CheckpointHasher::Add(const std::string& name, size_t begin,
                           std::span<const std::byte> bytes) {
  std::vector<Fingerprint>& pieces = pieces_.at(name);
  RI_CHECK(begin % kPieceBytes == 0 && begin / kPieceBytes < pieces.size());
  Fingerprint& digest = pieces[begin / kPieceBytes];
  unsigned int size = 0;
  const bool done =
      EVP_Digest(bytes.data(), bytes.size(), digest.data(), &size, EVP_sha256(), nullptr) == 1 &&
      size == digest.size();
  if (done) ++num_added_;
}

absl::StatusOr<Fingerprint> CheckpointHasher::Finish(const ModelConfig& config, KeptWeights keep,
                                                     const ChannelBalance* balance) const {
  if (num_added_ != num_pieces_) {
    return absl::InternalError(absl::StrCat("SHA-256 was computed of ", num_added_.load(), " of ",
                                            num_pieces_, " pieces of the weights"));
  }
  FingerprintBuilder builder;
  builder.AddInt("format", kFormatVersion);
  AddConfig(config, keep, builder);
  if (balance != nullptr && !balance->is_identity()) {
    builder.AddInt("channel_balance", ChannelBalance::kVersion);
    builder.AddBytes("channel_exponents", std::as_bytes(std::span(balance->exponents())));
  }
  if (balance != nullptr && balance->has_key_offsets()) {
    // What they are follows from the tensors, RoPE and these; their last bits are no matter.
    builder.AddInt("key_offsets", ChannelBalance::kOffsetVersion);
    builder.AddInt("key_offset_positions", config.context_length);
  }
  for (const auto& [name, tensor] : checkpoint_.tensors()) {
    builder.AddFingerprint("tensor", TensorFingerprint(name, tensor, pieces_.at(name)));
  }
  return builder.Finish();
}

absl::StatusOr<Fingerprint> ModelFingerprint(const ModelConfig& config,
                                             const Checkpoint& checkpoint,
                                             const FingerprintOptions& options) {
  struct Piece {
    const std::string* name;
    size_t begin;
    const HostTensor* tensor;
    size_t size;
  };
  constexpr size_t kPieceBytes = CheckpointHasher::kPieceBytes;
  std::vector<Piece> pieces;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    for (size_t at = 0; at < tensor.num_bytes(); at += kPieceBytes) {
      pieces.push_back({&name, at, &tensor, std::min(kPieceBytes, tensor.num_bytes() - at)});
    }
  }
  CheckpointHasher hasher(checkpoint);
  std::atomic<size_t> next = 0;
  absl::Mutex mutex;
  size_t done_bytes = 0;
  RunOnThreads(options.num_threads, [&] {
    std::vector<std::byte> memory;
    for (size_t i = next++; i < pieces.size(); i = next++) {
      hasher.Add(*pieces[i].name, pieces[i].begin,
                 pieces[i].tensor->Bytes(pieces[i].begin, pieces[i].size, memory));
      if (!options.progress) continue;
      absl::MutexLock lock(&mutex);
      done_bytes += pieces[i].size;
      options.progress(done_bytes, checkpoint.total_bytes());
    }
  });
  return hasher.Finish(config, options.keep, options.balance);
}

Fingerprint RandomModelFingerprint(const ModelConfig& config, KeptWeights keep) {
  FingerprintBuilder builder;
  builder.AddInt("format", kFormatVersion);
  AddConfig(config, keep, builder);
  builder.AddInt("random_weights", 1);
  return builder.Finish();
}

}  // namespace retroinfer
