#include "gpu_worker/wave_buffer/absent_pages.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "common/log/check.h"
#include "common/status/status_macros.h"

namespace retroinfer {
namespace {

constexpr uint32_t kPagesOfWord = 32;

size_t WordBytes(uint64_t arena_pages) {
  return static_cast<size_t>((arena_pages + kPagesOfWord - 1) / kPagesOfWord) * sizeof(AbsentWord);
}

size_t AskedBytes(uint64_t arena_pages) {
  return std::min<uint64_t>(arena_pages, AbsentPages::kMaxAsked) * sizeof(PageId);
}

}  // namespace

size_t AbsentPages::Bytes(uint64_t arena_pages) {
  return WordBytes(arena_pages) + sizeof(Results) + AskedBytes(arena_pages);
}

absl::StatusOr<AbsentPages> AbsentPages::Create(Device& device, Stream& stream,
                                                uint64_t arena_pages) {
  AbsentPages pages(device);
  const size_t words = WordBytes(arena_pages);
  const size_t asked = AskedBytes(arena_pages);
  constexpr auto kPurpose = MemoryPurpose::kBlockCache;
  ASSIGN_OR_RETURN(pages.words_, device.Allocate(words, kPurpose));
  ASSIGN_OR_RETURN(pages.results_, device.Allocate(sizeof(Results), kPurpose));
  ASSIGN_OR_RETURN(pages.asked_, device.Allocate(asked, kPurpose));
  ASSIGN_OR_RETURN(pages.host_words_, device.AllocateHost(words));
  ASSIGN_OR_RETURN(pages.host_results_, device.AllocateHost(sizeof(Results)));
  ASSIGN_OR_RETURN(pages.host_asked_, device.AllocateHost(asked));
  ASSIGN_OR_RETURN(pages.zeros_, device.AllocateHost(sizeof(Results)));
  for (const HostBuffer* buffer : {&pages.host_words_, &pages.zeros_}) {
    std::ranges::fill(buffer->bytes(), std::byte{0});
  }
  RETURN_IF_ERROR(
      device.Upload(stream, pages.host_words_.bytes(), pages.words_.bytes().first(words)));
  RETURN_IF_ERROR(stream.Synchronize());
  return pages;
}

void AbsentPages::Set(PageId first, uint32_t count, bool is_absent) {
  const std::span<AbsentWord> words = host_words_.as<AbsentWord>();
  const uint64_t end = uint64_t{first} + count;
  RI_CHECK(end <= words.size() * kPagesOfWord);
  for (uint64_t page = first; page < end;) {
    const auto bit = static_cast<uint32_t>(page % kPagesOfWord);
    const auto num_bits = static_cast<uint32_t>(std::min<uint64_t>(kPagesOfWord - bit, end - page));
    const uint32_t mask = (num_bits == kPagesOfWord ? ~0u : (1u << num_bits) - 1) << bit;
    uint32_t& word = words[page / kPagesOfWord].absent;
    num_absent_ -= static_cast<uint64_t>(std::popcount(word));
    word = is_absent ? word | mask : word & ~mask;
    num_absent_ += static_cast<uint64_t>(std::popcount(word));
    page += num_bits;
  }
  if (!is_absent || count == 0) return;
  const size_t first_word = first / kPagesOfWord;
  const auto end_word = static_cast<size_t>((end + kPagesOfWord - 1) / kPagesOfWord);
  const bool has_range = end_word_ > first_word_;
  first_word_ = has_range ? std::min(first_word_, first_word) : first_word;
  end_word_ = has_range ? std::max(end_word_, end_word) : end_word;
}

bool AbsentPages::is_absent(PageId page) const {
  return (host_words_.as<AbsentWord>()[page / kPagesOfWord].absent >> (page % kPagesOfWord) & 1) !=
         0;
}

// Outside of the words that are copied here the device has zeros. A step reads what the host has
// written before: the last step's copies are done.
absl::Status AbsentPages::BeginStep(Stream& stream) {
  begun_ = true;
  num_absent_at_begin_ = num_absent_;
  if (first_word_ == end_word_) return absl::OkStatus();
  const size_t offset = first_word_ * sizeof(AbsentWord);
  const size_t bytes = (end_word_ - first_word_) * sizeof(AbsentWord);
  RETURN_IF_ERROR(device_->Upload(stream, host_words_.bytes().subspan(offset, bytes),
                                  words_.bytes().subspan(offset, bytes)));
  if (num_absent_ == 0) first_word_ = end_word_ = 0;
  return device_->Upload(stream, zeros_.bytes(), results_.bytes().first(sizeof(Results)));
}

absl::Status AbsentPages::EndStep(Stream& stream) {
  if (!Wrote()) return absl::OkStatus();
  return device_->Download(stream, results_.bytes().first(sizeof(Results)),
                           host_results_.bytes().first(sizeof(Results)));
}

bool AbsentPages::Lacked(size_t row) const {
  return Wrote() && host_results_.as<Results>()[0].rows[row] != 0;
}

absl::StatusOr<std::span<const PageId>> AbsentPages::TakeAsked(Stream& stream) {
  const size_t count = Wrote() ? std::min<size_t>(host_results_.as<Results>()[0].num_asked,
                                                  host_asked_.as<PageId>().size())
                               : 0;
  if (count == 0) return std::span<const PageId>();
  const size_t bytes = count * sizeof(PageId);
  RETURN_IF_ERROR(
      device_->Download(stream, asked_.bytes().first(bytes), host_asked_.bytes().first(bytes)));
  RETURN_IF_ERROR(stream.Synchronize());
  return std::span<const PageId>(host_asked_.as<PageId>()).first(count);
}

AbsentPagesView AbsentPages::view() const {
  std::byte* const results = results_.bytes().device_data();
  return {.words = words_.as<AbsentWord>(),
          .rows = {reinterpret_cast<uint32_t*>(results + offsetof(Results, rows)), kMaxRows},
          .asked = asked_.as<PageId>(),
          .num_asked = reinterpret_cast<uint32_t*>(results + offsetof(Results, num_asked))};
}

}  // namespace retroinfer
