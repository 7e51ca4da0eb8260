#include "gpu_worker/executor/cached_kv_reader.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "common/kv/block_layout.h"
#include "tests/support/backends.h"

namespace retroinfer {
namespace {

using namespace test_support;

constexpr int64_t kTokens = 3 * 64 + 20;

// An arena with blocks of random numbers. (Segments: prefill_lane_test and the engine's suites.)
class CachedKvReaderTest : public testing::TestWithParam<BackendParam> {
 protected:
  CachedKvReaderTest()
      : geometry_{.num_layers = 2, .num_kv_heads = 2, .head_dim = 64, .format = kBf16Kv},
        layout_(geometry_),
        host_(size_t{6} * layout_.num_pages * geometry_.page_bytes()) {
    std::mt19937 random(7);
    for (std::byte& byte : host_) byte = static_cast<std::byte>(random() % 64);  // no NaN
    arena_ = *backend_->device->MapHost(host_);
  }
  CachedRun Run(uint32_t place, int64_t token_begin, uint32_t num_tokens) const {
    CachedRun run;
    run.extent = {.id = 1 + place,
                  .first_page = place * layout_.num_pages,
                  .num_pages = layout_.num_pages,
                  .num_tokens = num_tokens,
                  .cached = true};
    run.token_begin = token_begin;
    return run;
  }
  // A number of a block's token, as bf16 bits: keys of a page, then its values.
  uint16_t NumberAt(const CachedRun& run, uint32_t layer, uint32_t head, bool is_value,
                    int64_t token, int64_t i) const {
    const int64_t per_page = geometry_.tokens_per_page();
    const size_t page = run.extent.first_page + layout_.first_kv_page +
                        (size_t{layer} * 2 + head) * static_cast<size_t>(64 / per_page) +
                        static_cast<size_t>(token / per_page);
    const int64_t vector = (is_value ? per_page : 0) + token % per_page;
    uint16_t number;
    std::memcpy(
        &number,
        host_.data() + page * geometry_.page_bytes() + static_cast<size_t>((vector * 64 + i) * 2),
        sizeof(number));
    return number;
  }

  void ReadBlocks(const KvHeadRange& range);

  const KvGeometry geometry_;
  const BlockLayout layout_;
  std::vector<std::byte> host_;
  std::unique_ptr<Backend> backend_ = GetParam().create();
  DeviceSpan<std::byte> arena_;
};

// Reads blocks as a process that has these of the arena's heads.
void CachedKvReaderTest::ReadBlocks(const KvHeadRange& range) {
  const KvHeadRange heads = range.Of(geometry_);
  KvGeometry memory = geometry_;
  memory.num_kv_heads = heads.count;
  // In no order of the arena; the second member of a group, the first has blocks of its own.
  const std::vector<CachedRun> cached = {Run(4, 4, 64), Run(0, 68, 64), Run(2, 132, 64),
                                         Run(1, 196, 20)};
  auto reader = CachedKvReader::Create({.device = backend_->device.get(),
                                        .ops = backend_->ops.get(),
                                        .stream = backend_->stream.get(),
                                        .arena = arena_,
                                        .heads = range},
                                       memory, 1024, 2);
  ASSERT_TRUE(reader.ok());
  ASSERT_TRUE(reader->Begin({std::span(cached).subspan(1, 2), cached}).ok());
  const int64_t capacity = kTokens + 10;
  const auto vectors = static_cast<size_t>(heads.count * capacity);
  DeviceBuffer out = *backend_->device->Allocate(vectors * 64 * 2 * 2, MemoryPurpose::kActivations);
  const LayerKv kv{.keys = out.bytes().device_data(),
                   .values = out.bytes().device_data() + vectors * 64 * 2,
                   .num_kv_heads = heads.count,
                   .head_dim = 64,
                   .capacity = capacity,
                   .dtype = DType::kBf16};
  for (uint32_t layer = 0; layer < 2; ++layer) {
    if (layer == 0) {
      ASSERT_TRUE(reader->Read(1, 0, 3, layer, kv, 10).ok());
      ASSERT_TRUE(reader->Read(1, 3, 4, layer, kv, 10 + 3 * 64).ok());
    } else {
      ASSERT_TRUE(reader->Read(1, 0, 1, layer, kv, 10).ok());
      ASSERT_TRUE(reader->ReadFrom(1, 1, layer, kv, 10 + 64).ok());
    }
    std::vector<uint16_t> read(vectors * 64 * 2);
    ASSERT_TRUE(
        backend_->device
            ->Download(*backend_->stream, out.bytes(), std::as_writable_bytes(std::span(read)))
            .ok());
    ASSERT_TRUE(backend_->stream->Synchronize().ok());
    for (uint32_t head = 0; head < heads.count; ++head) {
      for (int64_t token = 0; token < kTokens; ++token) {
        const CachedRun& run = cached[static_cast<size_t>(token / 64)];
        for (int64_t i = 0; i < 64; ++i) {
          const auto at = static_cast<size_t>((head * capacity + 10 + token) * 64 + i);
          ASSERT_EQ(read[at], NumberAt(run, layer, heads.first + head, false, token % 64, i))
              << token;
          ASSERT_EQ(read[at + vectors * 64],
                    NumberAt(run, layer, heads.first + head, true, token % 64, i));
        }
      }
    }
  }
}

TEST_P(CachedKvReaderTest, BlocksAreReadIntoTheirRows) { ReadBlocks({}); }

TEST_P(CachedKvReaderTest, AProcessReadsItsHeadsOfBlocks) {
  for (const KvHeadRange& heads : {KvHeadRange{0, 1, 2}, KvHeadRange{1, 1, 2}}) ReadBlocks(heads);
}

INSTANTIATE_TEST_SUITE_P(Backends, CachedKvReaderTest, testing::ValuesIn(AvailableBackends()),
                         BackendName);

}  // namespace
}  // namespace retroinfer
