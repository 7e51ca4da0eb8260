// Operations that count the blocks of keys that prompts chose, where a benchmark asks for it.
//
// Threads: as the operations, on one stream.
#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "common/status/status_macros.h"
#include "gpu_worker/device/device.h"
#include "gpu_worker/ops/attention/cuda/chosen_blocks.h"
#include "gpu_worker/ops/backend/ops.h"

namespace retroinfer::bench {

struct ChoiceTotals {
  int64_t chosen = 0;  // by units and heads
  int64_t seen = 0;    // by the same
  int64_t either = 0;  // by units two by two, as the kernels copy them

  double density() const { return Share(chosen, seen); }
  double copied_of_chosen() const { return Share(either, chosen); }

 private:
  static double Share(int64_t a, int64_t b) {
    return b == 0 ? 0 : static_cast<double>(a) / static_cast<double>(b);
  }
};

class CountedAttentionOps final : public AttentionOps {
 public:
  CountedAttentionOps(Device& device, AttentionOps& ops) : device_(device), ops_(ops) {}

  // From here on, waits for each call and counts what it left in its working memory: that of its
  // last slice. For the CUDA backend.
  void BeginCounting() { is_counting_ = true; }
  ChoiceTotals EndCounting() {
    is_counting_ = false;
    return std::exchange(totals_, {});
  }

  absl::Status PrefillAttention(Stream& stream, const PrefillAttentionArgs& args) override {
    RETURN_IF_ERROR(ops_.PrefillAttention(stream, args));
    return is_counting_ ? Count(stream, args) : absl::OkStatus();
  }
  absl::Status StoreLayerKv(Stream& stream, const StoreLayerKvArgs& args) override {
    return ops_.StoreLayerKv(stream, args);
  }
  size_t PrefillAttentionScratchBytes(int64_t max_rows, int64_t max_tokens,
                                      int64_t num_query_heads) const override {
    return ops_.PrefillAttentionScratchBytes(max_rows, max_tokens, num_query_heads);
  }
  absl::Status FillDense(Stream& stream, const FillDenseArgs& args) override {
    return ops_.FillDense(stream, args);
  }
  absl::Status ReadDense(Stream& stream, const ReadDenseArgs& args) override {
    return ops_.ReadDense(stream, args);
  }
  absl::Status AppendDense(Stream& stream, const AppendDenseArgs& args) override {
    return ops_.AppendDense(stream, args);
  }
  size_t DecodeAttentionScratchBytes(int32_t max_batch, int32_t num_query_heads,
                                     int32_t head_dim) const override {
    return ops_.DecodeAttentionScratchBytes(max_batch, num_query_heads, head_dim);
  }
  absl::Status DecodeAttention(Stream& stream, const DecodeAttentionArgs& args) override {
    return ops_.DecodeAttention(stream, args);
  }

 private:
  absl::Status Count(Stream& stream, const PrefillAttentionArgs& args) {
    const int64_t end = args.first_token + args.queries.rows;
    const ChoosingTokens choosing = ChoosingOf(args.choice, args.first_token, end);
    if (choosing.begin >= choosing.end) return absl::OkStatus();
    const int64_t heads = args.queries.cols / args.kv.head_dim;
    const int64_t blocks = cuda::ChoiceBlocksOf(choosing.end);
    const int64_t all = (choosing.end - choosing.begin) / kQueryUnit;
    const auto of_slice =
        static_cast<int64_t>(args.scratch.size() / cuda::ChoiceBytesOfUnit(heads, blocks));
    const int64_t units = (all - 1) % of_slice + 1;
    const cuda::ChoiceLayout layout(units, heads, blocks);
    std::vector<uint32_t> words(static_cast<size_t>(units * heads * layout.words_of_pair));
    const auto bytes = std::as_writable_bytes(std::span(words));
    RETURN_IF_ERROR(
        device_.Download(stream, args.scratch.subspan(layout.words, bytes.size()), bytes));
    RETURN_IF_ERROR(stream.Synchronize());
    for (int64_t unit = 0; unit < units; ++unit) {
      totals_.seen += heads * cuda::ChoiceBlocksOf(choosing.end - (units - 1 - unit) * kQueryUnit);
      for (int64_t i = 0; i < heads * layout.words_of_pair; ++i) {
        const int64_t at = unit * heads * layout.words_of_pair + i;
        const uint32_t own = words[static_cast<size_t>(at)];
        const uint32_t before =
            unit % 2 == 0 ? 0 : words[static_cast<size_t>(at - heads * layout.words_of_pair)];
        totals_.chosen += std::popcount(own);
        totals_.either += std::popcount(own & ~before);
      }
    }
    return absl::OkStatus();
  }

  Device& device_;
  AttentionOps& ops_;
  bool is_counting_ = false;
  ChoiceTotals totals_;
};

// A backend's operations with these.
class OpsWithCountedChoices final : public Ops {
 public:
  OpsWithCountedChoices(Device& device, std::unique_ptr<Ops> ops)
      : ops_(std::move(ops)), attention_(device, ops_->attention()) {}

  ModelOps& model() override { return ops_->model(); }
  CountedAttentionOps& attention() override { return attention_; }
  IndexOps& index() override { return ops_->index(); }
  BlockCacheOps& block_cache() override { return ops_->block_cache(); }
  CollectiveOps& collective() override { return ops_->collective(); }
  absl::Status CheckKvFormat(const KvFormat& format) const override {
    return ops_->CheckKvFormat(format);
  }

 private:
  const std::unique_ptr<Ops> ops_;
  CountedAttentionOps attention_;
};

}  // namespace retroinfer::bench
