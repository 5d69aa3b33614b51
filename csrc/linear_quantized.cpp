// Quantized linear layers: int8 activations with Q8 or Q4 weights. For one row and one output the sum is, whatever
// the other rows, tiles and threads: within a run of 32 along k exact; runs added in order by two fused
// multiply-adds (scale, then minimum, which Q8 has where dot.h reads it with an offset) into a partial sum per
// k_segment; partial sums added in order.
#include <type_traits>

#include "dot.h"
#include "kernel_functions.h"
#include "linear_tile.h"

namespace headrace::HEADRACE_ISA {

namespace {

constexpr int kRun = kActivationGroup;
// Rows that share what it takes to unpack weights, while sums and weights still fit the registers.
#if defined(HEADRACE_ISA_avx512)
constexpr int kRowsAtOnce = 8;
#else
constexpr int kRowsAtOnce = 4;
#endif
constexpr ptrdiff_t kPrefetch = 2048;  // bytes of weights ahead: with few rows memory is what is waited for

HEADRACE_INLINE F32x16 load_scale(const float* p) { return load(p); }
HEADRACE_INLINE F32x16 load_scale(const uint16_t* p) { return load_half(p); }

// One tile's part of a packed matrix.
template <class Scale>
struct Tile {
  const uint8_t* data;
  const Scale* scale;
  const Scale* minimum;
};

template <Scheme scheme, int R>
HEADRACE_INLINE void dot_run(const uint8_t* data, const int8_t* const (&q)[R], int k, F32x16 (&sums)[R]) {
  if constexpr (scheme == Scheme::Q4) {
    Dot4 dots[R];
    for (int r = 0; r < R; ++r) dots[r] = no_dot4();
#pragma GCC unroll 4
    for (int i = 0; i < kRun / 8; ++i) {
      Weights low, high;
      load_q4(data + 64 * i, low, high);
      for (int r = 0; r < R; ++r) dots[r] = dot(dots[r], low, load_quad(q[r] + k + 8 * i));
      for (int r = 0; r < R; ++r) dots[r] = dot(dots[r], high, load_quad(q[r] + k + 8 * i + 4));
    }
    for (int r = 0; r < R; ++r) sums[r] = to_float(dots[r]);
  } else {
    Dot8 dots[R];
    for (int r = 0; r < R; ++r) dots[r] = no_dot8();
#pragma GCC unroll 8
    for (int i = 0; i < kRun / 4; ++i) {
      const Weights w = load_q8(data + 64 * i);
      for (int r = 0; r < R; ++r) dots[r] = dot(dots[r], w, load_quad(q[r] + k + 4 * i));
    }
    for (int r = 0; r < R; ++r) sums[r] = to_float(dots[r]);
  }
}

template <Scheme scheme, class Scale, int R>
void tile_rows(const QuantizedRows& x, int row, Tile<Scale> tile, int group, int k_segment, F32x16 (&total)[R]) {
  constexpr ptrdiff_t run_bytes = kTile * kRun / (scheme == Scheme::Q4 ? 2 : 1);
  const int8_t* q[R];
  const float* scale[R];
  const float* scaled_sum[R];
  for (int r = 0; r < R; ++r) {
    q[r] = x.q + static_cast<ptrdiff_t>(row + r) * x.k;
    scale[r] = x.scale + static_cast<ptrdiff_t>(row + r) * (x.k / kRun);
    scaled_sum[r] = x.scaled_sum + static_cast<ptrdiff_t>(row + r) * (x.k / kRun);
    total[r] = zero();
  }
  int in_group = 0;
  for (int segment = 0; segment < x.k; segment += k_segment) {
    F32x16 part[R];
    for (int r = 0; r < R; ++r) part[r] = zero();
    const int end = min_int(segment + k_segment, x.k);
    for (int k = segment; k < end; k += kRun) {
      F32x16 sums[R];
      for (int i = 0; i < run_bytes; i += 64) __builtin_prefetch(tile.data + kPrefetch + i);
      dot_run<scheme, R>(tile.data, q, k, sums);
      const F32x16 weight_scale = load_scale(tile.scale);
      for (int r = 0; r < R; ++r) part[r] = fma(mul(weight_scale, set1(scale[r][k / kRun])), sums[r], part[r]);
      if constexpr (scheme == Scheme::Q4) {
        const F32x16 minimum = load_scale(tile.minimum);
        for (int r = 0; r < R; ++r) part[r] = fma(minimum, set1(scaled_sum[r][k / kRun]), part[r]);
      } else if constexpr (kOffset8 != 0) {
        const F32x16 minimum = mul(weight_scale, set1(-kOffset8));
        for (int r = 0; r < R; ++r) part[r] = fma(minimum, set1(scaled_sum[r][k / kRun]), part[r]);
      }
      tile.data += run_bytes;
      in_group += kRun;
      if (in_group == group) {
        in_group = 0;
        tile.scale += kTile;
        tile.minimum += kTile;
      }
    }
    for (int r = 0; r < R; ++r) total[r] = add(total[r], part[r]);
  }
}

template <Scheme scheme, class Scale>
void linear(const QuantizedRows& x, int rows, const PackedMatrix& w, const LinearOut& out, int tile_begin,
            int tile_end) {
  const ptrdiff_t tile_bytes = static_cast<ptrdiff_t>(w.k) * kTile / (scheme == Scheme::Q4 ? 2 : 1);
  const ptrdiff_t tile_scales = static_cast<ptrdiff_t>(w.k / w.group) * kTile;
  const int k_segment = out.k_segment > 0 ? out.k_segment : w.k;
  const int block = max_int(kRowsAtOnce, static_cast<int>(kRowBlockBytes / w.k) / kRowsAtOnce * kRowsAtOnce);
  for (int first = 0; first < rows; first += block) {
    for (int t = tile_begin; t < tile_end; ++t) {
      Tile<Scale> tile{static_cast<const uint8_t*>(w.data) + t * tile_bytes,
                       static_cast<const Scale*>(w.scale) + t * tile_scales, nullptr};
      if constexpr (scheme == Scheme::Q4) tile.minimum = static_cast<const Scale*>(w.minimum) + t * tile_scales;
      const int column = t * kTile, count = w.n - column;
      for_rows<kRowsAtOnce>(first, min_int(first + block, rows), [&](auto at_once, int row) {
        constexpr int R = decltype(at_once)::value;
        // Outputs lie a row apart: fetched while their sums are made.
        for (int r = 0; r < R; ++r) __builtin_prefetch(out.y + (row + r) * out.stride + column, 1);
        F32x16 total[R];
        tile_rows<scheme, Scale, R>(x, row, tile, w.group, k_segment, total);
        for (int r = 0; r < R; ++r)
          finish_tile(total[r], out, out.y + (row + r) * out.stride + column, out.bias ? out.bias + column : nullptr,
                      count);
      });
    }
  }
}

}  // namespace

void linear_quantized(const QuantizedRows& x, int rows, const PackedMatrix& w, const LinearOut& out, int tile_begin,
                      int tile_end) {
  const auto chosen = w.scheme == Scheme::Q4 ? (w.half_scales ? linear<Scheme::Q4, uint16_t> : linear<Scheme::Q4, float>)
                                             : (w.half_scales ? linear<Scheme::Q8, uint16_t> : linear<Scheme::Q8, float>);
  chosen(x, rows, w, out, tile_begin, tile_end);
}

}  // namespace headrace::HEADRACE_ISA
