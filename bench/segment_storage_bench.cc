// Durable segments: bandwidth of Put() against writing and syncing a plain file, and of Read()
// against reading a plain file of the same bytes with as many threads; with the page cache dropped
// before each run ("cold") and with everything in it ("warm"), buffered and with direct reads. And
// of PartialImage::Fetch(): what a question by the index wants of an image, its first sixteenth and
// pages of the rest ("parts"), beside the image as a whole: an eighth in runs of 12 KiB at random,
// or what a recorded question wanted.
//
// RETROINFER_BENCH_RUNS: file with a run of pages of 2 KiB in each line, the first one's number and
// how many, in order (`python3 -m tools.lab.touched --runs`); each image takes the next of them.
// RETROINFER_BENCH_PART: "parts" alone.
// RETROINFER_BENCH_FOLDER: where (default: the folder for temporary files).
// RETROINFER_BENCH_SEGMENTS, RETROINFER_BENCH_IMAGE_MIB: how many images of which size (default: 8
// of 64 MiB; a segment of 8192 tokens of an 8B model in bf16 has about 1190). Checks the bytes
// first. Prints JSON; exits with 1 if a byte is wrong.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "bench/support/measure.h"
#include "common/kv/kv_geometry.h"
#include "common/log/check.h"
#include "common/shm/unique_fd.h"
#include "kv_store_service/arena/extent_allocator.h"
#include "kv_store_service/persistence/payload_table.h"
#include "kv_store_service/persistence/rocksdb_segment_storage.h"
#include "kv_store_service/tier/partial_image.h"

namespace retroinfer::kvstore {
namespace {

namespace fs = std::filesystem;

constexpr size_t kBlockBytes = 1 << 20;
constexpr int kReadThreads = 4;

size_t EnvCount(const char* name, size_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::max<size_t>(1, std::strtoull(text, nullptr, 10));
}

struct Workload {
  size_t num_segments;
  size_t image_bytes;
  int rounds;
};

struct Segment {
  SegmentRecord record;
  std::vector<int32_t> token_ids;
};

Segment MakeSegment(size_t index, size_t image_bytes) {
  Segment segment;
  segment.token_ids.assign(1024, static_cast<int32_t>(index));
  segment.record.name = common::NameSegment({}, segment.token_ids);
  segment.record.num_tokens = 1024;
  segment.record.image_bytes = image_bytes;
  return segment;
}

void DropFromPageCache(const fs::path& path) {
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    if (!entry.is_regular_file()) continue;
    const common::UniqueFd file(open(entry.path().c_str(), O_RDONLY));
    fdatasync(file.get());
    posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

void PlainWrite(const std::string& path, std::span<const std::byte> image) {
  const common::UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600));
  for (size_t offset = 0; offset < image.size(); offset += kBlockBytes) {
    const size_t size = std::min(kBlockBytes, image.size() - offset);
    RI_CHECK(write(file.get(), image.data() + offset, size) == static_cast<ssize_t>(size));
  }
  RI_CHECK(fsync(file.get()) == 0);
}

void PlainRead(const std::string& path, std::span<std::byte> image) {
  const common::UniqueFd file(open(path.c_str(), O_RDONLY));
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t offset; (offset = next.fetch_add(kBlockBytes)) < image.size();) {
      const size_t size = std::min(kBlockBytes, image.size() - offset);
      RI_CHECK(pread(file.get(), image.data() + offset, size, static_cast<off_t>(offset)) ==
               static_cast<ssize_t>(size));
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < kReadThreads; ++i) others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
}

class StorageBench {
 public:
  StorageBench(const Workload& workload, fs::path folder)
      : workload_(workload), folder_(std::move(folder)), image_(workload.image_bytes) {
    if (const char* const path = std::getenv("RETROINFER_BENCH_RUNS")) {
      std::ifstream file(path);
      for (PageRun run; file >> run.first >> run.count;) recorded_.push_back(run);
      RI_CHECK(!recorded_.empty());
    }
    std::mt19937_64 random(1);
    for (size_t i = 0; i + 8 <= image_.size(); i += 8) {
      const uint64_t word = random();
      std::memcpy(image_.data() + i, &word, sizeof(word));
    }
    for (size_t i = 0; i < workload.num_segments; ++i) {
      segments_.push_back(MakeSegment(i, workload.image_bytes));
    }
    fs::create_directories(folder_ / "plain");
  }

  nlohmann::json Run() {
    nlohmann::json report = {{"benchmark", "segment_storage"},
                             {"smoke", bench::IsSmoke()},
                             {"folder", folder_.string()},
                             {"commit", std::string(common::kBuildRevision)},
                             {"num_segments", workload_.num_segments},
                             {"image_bytes", workload_.image_bytes},
                             {"read_threads", kReadThreads}};
    report["write"] = Write();
    const char* const part = std::getenv("RETROINFER_BENCH_PART");
    const bool parts_alone = part != nullptr && std::string_view(part) == "parts";
    for (const bool direct : {false, true}) {
      auto storage = Open(direct);
      for (const bool cold : {true, false}) {
        if (parts_alone) continue;
        report[std::string(direct ? "restore_direct_" : "restore_buffered_") +
               (cold ? "cold" : "warm")] = Restore(*storage, cold);
      }
      if (direct || !parts_alone) {
        report[direct ? "parts_direct_cold" : "parts_buffered_cold"] = ReadParts(*storage);
      }
    }
    return report;
  }

 private:
  std::unique_ptr<SegmentStorage> Open(bool direct) {
    RocksDbStorageOptions options;
    options.folder = folder_ / "store";
    options.read_threads = kReadThreads;
    options.direct_reads = direct;
    auto storage = OpenRocksDbSegmentStorage(options);
    if (!storage.ok()) std::fprintf(stderr, "%s\n", storage.status().ToString().c_str());
    RI_CHECK(storage.ok());
    return *std::move(storage);
  }

  std::string PlainPath(size_t index) const { return folder_ / "plain" / std::to_string(index); }

  // Each image begins with its number, so that no two are the same.
  std::span<const std::byte> Image(size_t index) {
    std::memcpy(image_.data(), &index, sizeof(index));
    return image_;
  }

  nlohmann::json Write() {
    auto storage = Open(false);
    bench::Samples put, plain;
    for (size_t i = 0; i < segments_.size(); ++i) {
      const auto image = Image(i);
      plain.Time([&] { PlainWrite(PlainPath(i), image); });
      put.Time(
          [&] { RI_CHECK(storage->Put(segments_[i].record, segments_[i].token_ids, image).ok()); });
    }
    return Compare(put.timing(), plain.timing());
  }

  nlohmann::json Restore(SegmentStorage& storage, bool cold) {
    std::vector<std::byte> target(image_.size());
    bench::Samples restore, plain;
    for (int round = 0; round < workload_.rounds; ++round) {
      for (size_t i = 0; i < segments_.size(); ++i) {
        const auto image = Image(i);
        if (cold) DropFromPageCache(folder_);
        const auto read = [&] { RI_CHECK(storage.Read(segments_[i].record.name, target).ok()); };
        if (round == 0) read();  // warm-up, and the check
        RI_CHECK(std::equal(target.begin(), target.end(), image.begin()) || round > 0);
        if (cold) DropFromPageCache(folder_);
        restore.Time(read);
        if (round == 0 && !cold) PlainRead(PlainPath(i), target);
        plain.Time([&] { PlainRead(PlainPath(i), target); });
      }
    }
    return Compare(restore.timing(), plain.timing());
  }

  // Pages of image `i`, behind its index, that a question wants.
  std::vector<PageRun> WantedPages(size_t i, uint32_t num_pages) {
    std::vector<PageRun> wanted;
    if (recorded_.empty()) {
      constexpr uint32_t kRunPages = 6, kOneRunIn = 8 * kRunPages;
      std::mt19937_64 random(2 + i);
      for (uint32_t at = 0; at + kOneRunIn <= num_pages; at += kOneRunIn) {
        const auto within = static_cast<uint32_t>(random() % (kOneRunIn - kRunPages));
        wanted.push_back({at + within / 2 * 2, kRunPages});
      }
      return wanted;
    }
    const uint64_t begin = uint64_t{i} * num_pages;
    for (const PageRun& run : recorded_) {
      if (run.first < begin || run.first + run.count > begin + num_pages) continue;
      wanted.push_back({static_cast<uint32_t>(run.first - begin), run.count});
    }
    RI_CHECK(!wanted.empty());
    return wanted;
  }
  // Runs of parts that hold these pages, as a worker asks for them.
  static std::vector<PartRun> PartsOfPages(std::span<const PageRun> pages, uint32_t index_bytes,
                                           uint32_t part_bytes) {
    std::vector<PartRun> runs;
    for (const PageRun& run : pages) {
      const uint64_t begin = index_bytes + uint64_t{run.first} * kPageBytes;
      const uint64_t end = begin + uint64_t{run.count} * kPageBytes;
      const auto first = static_cast<uint32_t>(begin / part_bytes);
      const auto past = static_cast<uint32_t>((end + part_bytes - 1) / part_bytes);
      const uint32_t last = runs.empty() ? 0 : runs.back().first + runs.back().count;
      if (!runs.empty() && first <= last) {
        runs.back().count = std::max(past, last) - runs.back().first;
      } else {
        runs.push_back({first, past - first});
      }
    }
    return runs;
  }

  nlohmann::json ReadParts(SegmentStorage& storage) {
    std::vector<std::byte> target(image_.size());
    bench::Samples index, pages, open, whole;
    const auto index_bytes = static_cast<uint32_t>(image_.size() / 16 / kPageBytes * kPageBytes);
    uint64_t num_runs = 0, page_bytes = 0, read_bytes = 0;
    const size_t num_images = segments_.size() * static_cast<size_t>(workload_.rounds);
    for (size_t round = 0; round < num_images; ++round) {
      const size_t i = round % segments_.size();
      const SegmentName& name = segments_[i].record.name;
      DropFromPageCache(folder_);
      whole.Time([&] { RI_CHECK(storage.Read(name, target).ok()); });
      std::ranges::fill(target, std::byte{0});
      DropFromPageCache(folder_);
      std::unique_ptr<ImageParts> parts;
      open.Time([&] { parts = *storage.OpenParts(name); });
      RI_CHECK(parts != nullptr);
      const uint32_t part_bytes = parts->part_bytes();
      PartialImage image(std::move(parts), target);
      const std::vector<PageRun> wanted =
          WantedPages(i, static_cast<uint32_t>((image_.size() - index_bytes) / kPageBytes));
      const std::vector<PartRun> head = {{0, (index_bytes + part_bytes - 1) / part_bytes}};
      const std::vector<PartRun> runs = PartsOfPages(wanted, index_bytes, part_bytes);
      uint64_t of_index = 0;
      index.Time([&] { RI_CHECK(image.Fetch(head, &of_index).ok()); });
      pages.Time([&] { RI_CHECK(image.Fetch(runs, &read_bytes).ok()); });
      const auto right = Image(i);
      for (const PageRun& run : wanted) {
        const size_t begin = index_bytes + size_t{run.first} * kPageBytes;
        page_bytes += size_t{run.count} * kPageBytes;
        RI_CHECK(std::memcmp(&target[begin], &right[begin], size_t{run.count} * kPageBytes) == 0);
      }
      num_runs += wanted.size();
    }
    const double first = open.timing().median + index.timing().median + pages.timing().median;
    return {{"open", bench::ToJson(open.timing())},
            {"index_bytes", index_bytes},
            {"index", bench::ToJson(index.timing())},
            {"runs", num_runs / num_images},
            {"page_bytes", page_bytes / num_images},
            {"page_bytes_read", read_bytes / num_images},
            {"pages", bench::ToJson(pages.timing())},
            {"whole", bench::ToJson(whole.timing())},
            {"first_over_whole", first / whole.timing().median}};
  }

  nlohmann::json Compare(const bench::Timing& ours, const bench::Timing& plain) const {
    const double bytes = static_cast<double>(workload_.image_bytes);
    return {{"gb_per_s", bytes / ours.median / 1e9},
            {"plain_gb_per_s", bytes / plain.median / 1e9},
            {"ratio", plain.median / ours.median},
            {"timing", bench::ToJson(ours)},
            {"plain_timing", bench::ToJson(plain)}};
  }

  const Workload workload_;
  const fs::path folder_;
  std::vector<PageRun> recorded_;
  std::vector<std::byte> image_;
  std::vector<Segment> segments_;
};

int Main() {
  const char* base = std::getenv("RETROINFER_BENCH_FOLDER");
  const fs::path folder = fs::path(base != nullptr ? base : fs::temp_directory_path().string()) /
                          ("segment_storage_bench." + std::to_string(getpid()));
  const Workload workload = bench::IsSmoke()
                                ? Workload{2, size_t{4} << 20, 1}
                                : Workload{EnvCount("RETROINFER_BENCH_SEGMENTS", 8),
                                           EnvCount("RETROINFER_BENCH_IMAGE_MIB", 64) << 20, 3};
  KeepReadBuffers();  // as the service does
  bench::Print(StorageBench(workload, folder).Run());
  fs::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace retroinfer::kvstore

int main() { return retroinfer::kvstore::Main(); }
