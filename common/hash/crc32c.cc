// The hardware path cuts a buffer into three equal blocks, whose CRCs the CPU computes side by side
// (the instruction takes 3 cycles and one can start each cycle), and joins them: appending n zero
// bytes to a message multiplies its CRC by x^(8n) modulo the polynomial, a linear map that is kept
// as four tables of 256 words for the block length.
#include "common/hash/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace retroinfer::common {
namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

using Table = std::array<std::array<uint32_t, 256>, 8>;

// tables[k][b]: CRC of byte b followed by k zero bytes.
constexpr Table MakeTables() {
  Table tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < tables.size(); ++k) {
    for (uint32_t byte = 0; byte < 256; ++byte) {
      const uint32_t previous = tables[k - 1][byte];
      tables[k][byte] = (previous >> 8) ^ tables[0][previous & 0xff];
    }
  }
  return tables;
}

constexpr Table kTables = MakeTables();

uint64_t LoadU64(const std::byte* data) {
  uint64_t word;
  std::memcpy(&word, data, sizeof(word));
  return word;
}

// `crc` is inverted already, here and in the functions below.
uint32_t UpdatePortable(uint32_t crc, const std::byte* data, size_t size) {
  for (; size >= 8; size -= 8, data += 8) {
    const uint64_t word = LoadU64(data) ^ crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 0xff];
  }
  for (; size > 0; --size, ++data) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<uint32_t>(*data)) & 0xff];
  }
  return crc;
}

#if defined(__x86_64__)

constexpr size_t kBlockBytes = 4096;  // of each of the three streams

using ShiftTable = std::array<std::array<uint32_t, 256>, 4>;

// table[k][b]: the CRC register with b in byte k after kBlockBytes zero bytes.
const ShiftTable& BlockShift() {
  static const ShiftTable table = [] {
    std::array<uint32_t, 32> powers;  // image of each bit
    for (int bit = 0; bit < 32; ++bit) {
      uint32_t crc = uint32_t{1} << bit;
      for (size_t i = 0; i < kBlockBytes; ++i) crc = (crc >> 8) ^ kTables[0][crc & 0xff];
      powers[bit] = crc;
    }
    ShiftTable result{};
    for (int k = 0; k < 4; ++k) {
      for (uint32_t byte = 0; byte < 256; ++byte) {
        for (int bit = 0; bit < 8; ++bit) {
          if (byte >> bit & 1) result[k][byte] ^= powers[8 * k + bit];
        }
      }
    }
    return result;
  }();
  return table;
}

uint32_t Shift(const ShiftTable& table, uint32_t crc) {
  return table[0][crc & 0xff] ^ table[1][crc >> 8 & 0xff] ^ table[2][crc >> 16 & 0xff] ^
         table[3][crc >> 24];
}

__attribute__((target("sse4.2"))) uint32_t UpdateSse42(uint32_t crc, const std::byte* data,
                                                       size_t size) {
  if (size >= 3 * kBlockBytes) {
    const ShiftTable& shift = BlockShift();
    do {
      uint64_t first = crc, second = 0, third = 0;
      for (size_t i = 0; i < kBlockBytes; i += 8) {
        first = _mm_crc32_u64(first, LoadU64(data + i));
        second = _mm_crc32_u64(second, LoadU64(data + kBlockBytes + i));
        third = _mm_crc32_u64(third, LoadU64(data + 2 * kBlockBytes + i));
      }
      crc = Shift(shift, static_cast<uint32_t>(first)) ^ static_cast<uint32_t>(second);
      crc = Shift(shift, crc) ^ static_cast<uint32_t>(third);
      data += 3 * kBlockBytes;
      size -= 3 * kBlockBytes;
    } while (size >= 3 * kBlockBytes);
  }
  uint64_t wide = crc;
  for (; size >= 8; size -= 8, data += 8) wide = _mm_crc32_u64(wide, LoadU64(data));
  crc = static_cast<uint32_t>(wide);
  for (; size > 0; --size, ++data) crc = _mm_crc32_u8(crc, static_cast<uint8_t>(*data));
  return crc;
}

#endif

using UpdateFunction = uint32_t (*)(uint32_t, const std::byte*, size_t);

UpdateFunction BestUpdate() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("sse4.2")) return UpdateSse42;
#endif
  return UpdatePortable;
}

}  // namespace

uint32_t Crc32c(std::span<const std::byte> data, uint32_t crc) {
  static const UpdateFunction update = BestUpdate();
  return ~update(~crc, data.data(), data.size());
}

uint32_t PortableCrc32c(std::span<const std::byte> data, uint32_t crc) {
  return ~UpdatePortable(~crc, data.data(), data.size());
}

}  // namespace retroinfer::common
