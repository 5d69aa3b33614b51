#include "pack.h"

#include <cstdlib>
#include <cstring>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace headrace {

namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kChunk = size_t{32} << 20;
constexpr int kRun = 32;  // what a group is a multiple of (ops/matrix.py)

size_t round_up(size_t size, size_t to) { return (size + to - 1) / to * to; }

size_t data_bytes(Scheme scheme, size_t values) {
  switch (scheme) {
    case Scheme::F32: return values * 4;
    case Scheme::BF16: return values * 2;
    case Scheme::Q8: return values;
    case Scheme::Q4: return values / 2;
  }
  return 0;
}

// False if half cannot hold x exactly; infinities and NaN count as what it cannot hold.
bool to_half(float x, uint16_t& half) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  const uint32_t sign = u >> 16 & 0x8000u, magnitude = u & 0x7fffffffu;
  const int exponent = static_cast<int>(magnitude >> 23) - 127;
  if (exponent > 15) return false;
  if (exponent >= -14) {
    half = static_cast<uint16_t>(sign | static_cast<uint32_t>(exponent + 15) << 10 | (magnitude >> 13 & 0x3ffu));
    return (magnitude & 0x1fffu) == 0;
  }
  if (exponent < -24) {
    half = static_cast<uint16_t>(sign);
    return magnitude == 0;
  }
  const uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
  const int shift = -1 - exponent;  // subnormal halves count in 2^-24
  half = static_cast<uint16_t>(sign | mantissa >> shift);
  return (mantissa & ((1u << shift) - 1)) == 0;
}

uint32_t word_at(const uint8_t* p) {
  uint32_t word;
  std::memcpy(&word, p, 4);
  return word;
}

// Rows of `from` are transposed into [k][16], a piece of k at a time so that both sides stay in the cache.
template <class Value>
void pack_plain(const Value* from, Value* to, int lanes, int k) {
  constexpr int kPiece = 64;
  for (int first = 0; first < k; first += kPiece) {
    const int last = first + kPiece < k ? first + kPiece : k;
    for (int lane = 0; lane < kTile; ++lane)
      for (int i = first; i < last; ++i)
        to[static_cast<ptrdiff_t>(i) * kTile + lane] = lane < lanes ? from[static_cast<ptrdiff_t>(lane) * k + i] : Value{};
  }
}

void pack_q8(const uint8_t* from, uint8_t* to, int lanes, int k) {
  for (int i = 0; i < k; i += 4, to += 4 * kTile)
    for (int lane = 0; lane < kTile; ++lane) {
      const uint32_t word = lane < lanes ? word_at(from + static_cast<ptrdiff_t>(lane) * k + i) : 0;
      std::memcpy(to + 4 * lane, &word, 4);
    }
}

// A run of 32: bytes 0..15 hold elements 0..15 low and 16..31 high; packed, each byte holds an element and the one
// four places on.
void pack_q4(const uint8_t* from, uint8_t* to, int lanes, int k) {
  constexpr uint32_t low = 0x0f0f0f0fu, high = 0xf0f0f0f0u;
  constexpr int step = 4 * kTile;  // bytes of a packed run of 8
  for (int run = 0; run < k / kRun; ++run, to += 4 * step)
    for (int lane = 0; lane < kTile; ++lane) {
      uint32_t b[4] = {};
      if (lane < lanes) std::memcpy(b, from + static_cast<ptrdiff_t>(lane) * (k / 2) + run * 16, 16);
      const uint32_t packed[4] = {(b[0] & low) | (b[1] & low) << 4, (b[2] & low) | (b[3] & low) << 4,
                                  (b[0] >> 4 & low) | (b[1] & high), (b[2] >> 4 & low) | (b[3] & high)};
      for (int i = 0; i < 4; ++i) std::memcpy(to + i * step + 4 * lane, &packed[i], 4);
    }
}

void pack_scales(const float* from, const void* to, bool half, int tile, int lanes, int groups) {
  const ptrdiff_t first = static_cast<ptrdiff_t>(tile) * groups * kTile;
  float* floats = static_cast<float*>(const_cast<void*>(to)) + first;
  uint16_t* halves = static_cast<uint16_t*>(const_cast<void*>(to)) + first;
  from += static_cast<ptrdiff_t>(tile) * kTile * groups;
  for (int group = 0; group < groups; ++group)
    for (int lane = 0; lane < kTile; ++lane) {
      const float x = lane < lanes ? from[static_cast<ptrdiff_t>(lane) * groups + group] : 0.0f;
      if (half)
        to_half(x, halves[group * kTile + lane]);
      else
        floats[group * kTile + lane] = x;
    }
}

}  // namespace

void WeightStore::Free::operator()(void* p) const { std::free(p); }

uint8_t* WeightStore::take(size_t size) {
  size = round_up(size, kPackAlign);
  if (size > left_) {
    const size_t chunk = round_up(size > kChunk ? size : kChunk, kHugePage);
    std::unique_ptr<uint8_t, Free> memory(static_cast<uint8_t*>(std::aligned_alloc(kHugePage, chunk)));
    if (!memory) throw std::bad_alloc();
#ifdef __linux__
    madvise(memory.get(), chunk, MADV_HUGEPAGE);
#endif
    next_ = memory.get();
    left_ = chunk;
    chunks_.push_back(std::move(memory));
  }
  uint8_t* taken = next_;
  next_ += size;
  left_ -= size;
  nbytes_ += size;
  return taken;
}

PackedMatrix WeightStore::reserve(const NeutralMatrix& from, bool half_scales) {
  PackedMatrix to{from.scheme, from.n, from.k, from.group, half_scales, nullptr, nullptr, nullptr};
  to.data = take(packed_data_bytes(to));
  if (from.scale) to.scale = take(packed_scale_bytes(to));
  if (from.minimum) to.minimum = take(packed_scale_bytes(to));
  return to;
}

size_t packed_data_bytes(const PackedMatrix& m) {
  return data_bytes(m.scheme, static_cast<size_t>(num_tiles(m.n)) * kTile * m.k);
}

size_t packed_scale_bytes(const PackedMatrix& m) {
  return m.group ? static_cast<size_t>(num_tiles(m.n)) * kTile * (m.k / m.group) * (m.half_scales ? 2 : 4) : 0;
}

bool scales_fit_half(const NeutralMatrix& from, int begin, int end) {
  const ptrdiff_t groups = from.group ? from.k / from.group : 0;
  uint16_t half;
  for (const float* values : {from.scale, from.minimum})
    for (ptrdiff_t i = begin * groups; values && i < end * groups; ++i)
      if (!to_half(values[i], half)) return false;
  return true;
}

void pack_tiles(const NeutralMatrix& from, const PackedMatrix& to, int tile_begin, int tile_end) {
  for (int tile = tile_begin; tile < tile_end; ++tile) {
    const int first = tile * kTile, lanes = from.n - first < kTile ? from.n - first : kTile;
    const uint8_t* source = static_cast<const uint8_t*>(from.data) + data_bytes(from.scheme, static_cast<size_t>(first) * from.k);
    uint8_t* target = static_cast<uint8_t*>(const_cast<void*>(to.data)) +
                      data_bytes(from.scheme, static_cast<size_t>(first) * from.k);
    switch (from.scheme) {
      case Scheme::F32:
        pack_plain(reinterpret_cast<const uint32_t*>(source), reinterpret_cast<uint32_t*>(target), lanes, from.k);
        break;
      case Scheme::BF16:
        pack_plain(reinterpret_cast<const uint16_t*>(source), reinterpret_cast<uint16_t*>(target), lanes, from.k);
        break;
      case Scheme::Q8: pack_q8(source, target, lanes, from.k); break;
      case Scheme::Q4: pack_q4(source, target, lanes, from.k); break;
    }
    const int groups = from.group ? from.k / from.group : 0;
    if (from.scale) pack_scales(from.scale, to.scale, to.half_scales, tile, lanes, groups);
    if (from.minimum) pack_scales(from.minimum, to.minimum, to.half_scales, tile, lanes, groups);
  }
}

}  // namespace headrace
