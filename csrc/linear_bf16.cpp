// Linear layers of BF16 weights on processors that multiply bf16 (AVX512_BF16): twice the products of a fused
// multiply-add, for activations rounded to bf16. For one row and one output the sum is, whatever the other rows, tiles and
// threads: one instruction for each two values along k, in order, into a partial sum per k_segment; partial sums added in
// order. All else is the AVX-512 set's (dispatch.cpp).
#include <type_traits>

#include "kernel_functions.h"
#include "linear_tile.h"
#include "scratch.h"

namespace headrace::avx512 {
void linear_float(const float* x, ptrdiff_t stride, int rows, const PackedMatrix& w, const LinearOut& out,
                  int tile_begin, int tile_end);
}

namespace headrace::HEADRACE_ISA {

namespace {

constexpr int kRowsAtOnce = 12;
constexpr int kLongest = 32768;

constexpr int pairs_of(int k) { return (k + 31) / 32 * 16; }

// Rows as pairs of bf16; what lies behind the last value is 0.
void round_rows(const float* x, ptrdiff_t stride, int rows, int k, uint32_t* pairs) {
  for (int row = 0; row < rows; ++row, x += stride, pairs += pairs_of(k))
    for (int i = 0; i < k; i += 2 * kLanes) {
      const auto part = [&](int at) { return k - at >= kLanes ? load(x + at) : load_part(x + at, max_int(k - at, 0)); };
      _mm512_storeu_si512(pairs + i / 2, (__m512i)_mm512_cvtne2ps_pbh(part(i + kLanes).v, part(i).v));
    }
}

// Two values along k of every output, side by side; the second is 0 where there is none.
HEADRACE_INLINE __m512i load_pairs(const uint16_t* p, bool both) {
  alignas(64) static constexpr uint16_t kOrder[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                      8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  const __m512i values = _mm512_maskz_loadu_epi32(both ? 0xffff : 0xff, p);
  return _mm512_permutexvar_epi16(_mm512_load_si512(kOrder), values);
}

template <int R, int T>
void tiles_by_rows(const uint32_t* x, const PackedMatrix& w, const LinearOut& out, int row, int tile) {
  const uint16_t* data = static_cast<const uint16_t*>(w.data) + static_cast<ptrdiff_t>(tile) * w.k * kTile;
  const int k_segment = out.k_segment > 0 ? out.k_segment : w.k;
  F32x16 total[R][T];
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < T; ++t) total[r][t] = zero();
  for (int segment = 0; segment < w.k; segment += k_segment) {
    F32x16 part[R][T];
    for (int r = 0; r < R; ++r)
      for (int t = 0; t < T; ++t) part[r][t] = zero();
    const int end = min_int(segment + k_segment, w.k);
    for (int i = segment; i < end; i += 2) {  // segments begin at even places
      __m512i weights[T];
      for (int t = 0; t < T; ++t) weights[t] = load_pairs(data + (static_cast<ptrdiff_t>(t) * w.k + i) * kTile, i + 1 < end);
      for (int r = 0; r < R; ++r) {
        const __m512i value = _mm512_set1_epi32(static_cast<int>(x[r * pairs_of(w.k) + i / 2]));
        for (int t = 0; t < T; ++t)
          part[r][t].v = _mm512_dpbf16_ps(part[r][t].v, (__m512bh)weights[t], (__m512bh)value);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int t = 0; t < T; ++t) total[r][t] = add(total[r][t], part[r][t]);
  }
  for (int t = 0; t < T; ++t) {
    const int column = (tile + t) * kTile;
    for (int r = 0; r < R; ++r)
      finish_tile(total[r][t], out, out.y + (row + r) * out.stride + column, out.bias ? out.bias + column : nullptr,
                  w.n - column);
  }
}

}  // namespace

void linear_float(const float* x, ptrdiff_t stride, int rows, const PackedMatrix& w, const LinearOut& out,
                  int tile_begin, int tile_end) {
  if (w.scheme != Scheme::BF16 || w.k > kLongest)
    return avx512::linear_float(x, stride, rows, w, out, tile_begin, tile_end);
  static thread_local Scratch room;  // only what a block needs is ever touched
  room.reserve(sizeof(uint16_t) * kRowsAtOnce * kLongest);
  uint32_t* const pairs = reinterpret_cast<uint32_t*>(room.data());
  const int most = kRowBlockBytes / (4 * pairs_of(w.k)) / kRowsAtOnce * kRowsAtOnce, block = max_int(kRowsAtOnce, most);
  for (int first = 0; first < rows; first += block) {
    const int last = min_int(first + block, rows);
    round_rows(x + first * stride, stride, last - first, w.k, pairs);
    const auto at = [&](int row) { return pairs + static_cast<ptrdiff_t>(row - first) * pairs_of(w.k); };
    int tile = tile_begin;
    // Few rows leave registers for a second tile, whose chains of additions hide the latency of the first's.
    if (last - first <= 2)
      for (; tile + 2 <= tile_end; tile += 2)
        for_rows<2>(first, last, [&](auto at_once, int row) {
          tiles_by_rows<decltype(at_once)::value, 2>(at(row), w, out, row, tile);
        });
    for (; tile < tile_end; ++tile)
      for_rows<kRowsAtOnce>(first, last, [&](auto at_once, int row) {
        tiles_by_rows<decltype(at_once)::value, 1>(at(row), w, out, row, tile);
      });
  }
}

}  // namespace headrace::HEADRACE_ISA
