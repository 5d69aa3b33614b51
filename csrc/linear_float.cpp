// Float linear layers: float32 activations with F32 or BF16 weights. For one row and one output the sum is, whatever
// the other rows, tiles and threads: one fused multiply-add per value along k, in order, into a partial sum per
// k_segment; partial sums added in order.
#include <type_traits>

#include "kernel_functions.h"
#include "linear_tile.h"

namespace headrace::HEADRACE_ISA {

namespace {

// Accumulators of rows x tiles fill the registers: 12 of 16 on AVX2.
#if defined(HEADRACE_ISA_avx512)
constexpr int kRowsAtOnce = 12;
#else
constexpr int kRowsAtOnce = 6;
#endif

HEADRACE_INLINE F32x16 load_weights(const float* p) { return load(p); }
HEADRACE_INLINE F32x16 load_weights(const uint16_t* p) { return load_bf16(p); }

// Sums of rows row .. row+R-1 over T tiles that lie one after the other.
template <class Weight, int R, int T>
HEADRACE_INLINE void tile_rows(const float* x, ptrdiff_t stride, const Weight* w, int k, int k_segment,
                               F32x16 (&total)[R][T]) {
  for (int r = 0; r < R; ++r)
    for (int t = 0; t < T; ++t) total[r][t] = zero();
  for (int segment = 0; segment < k; segment += k_segment) {
    F32x16 part[R][T];
    for (int r = 0; r < R; ++r)
      for (int t = 0; t < T; ++t) part[r][t] = zero();
    const int end = min_int(segment + k_segment, k);
    for (int i = segment; i < end; ++i) {
      F32x16 weights[T];
      for (int t = 0; t < T; ++t) weights[t] = load_weights(w + (static_cast<ptrdiff_t>(t) * k + i) * kTile);
      for (int r = 0; r < R; ++r) {
        const F32x16 value = set1(x[r * stride + i]);
        for (int t = 0; t < T; ++t) part[r][t] = fma(weights[t], value, part[r][t]);
      }
    }
    for (int r = 0; r < R; ++r)
      for (int t = 0; t < T; ++t) total[r][t] = add(total[r][t], part[r][t]);
  }
}

template <class Weight, int R, int T>
void tiles_by_rows(const float* x, ptrdiff_t stride, const PackedMatrix& w, const LinearOut& out, int row, int tile) {
  const int k_segment = out.k_segment > 0 ? out.k_segment : w.k;
  F32x16 total[R][T];
  tile_rows<Weight, R, T>(x + row * stride, stride,
                          static_cast<const Weight*>(w.data) + static_cast<ptrdiff_t>(tile) * w.k * kTile, w.k,
                          k_segment, total);
  for (int t = 0; t < T; ++t) {
    const int column = (tile + t) * kTile;
    for (int r = 0; r < R; ++r)
      finish_tile(total[r][t], out, out.y + (row + r) * out.stride + column, out.bias ? out.bias + column : nullptr,
                  w.n - column);
  }
}

template <class Weight>
void linear(const float* x, ptrdiff_t stride, int rows, const PackedMatrix& w, const LinearOut& out, int tile_begin,
            int tile_end) {
  const int row_bytes = w.k * static_cast<int>(sizeof(float));
  const int block = max_int(kRowsAtOnce, static_cast<int>(kRowBlockBytes / row_bytes) / kRowsAtOnce * kRowsAtOnce);
  for (int first = 0; first < rows; first += block) {
    const int last = min_int(first + block, rows);
    int tile = tile_begin;
    // Few rows leave registers for a second tile, whose chains of additions hide the latency of the first's.
    if (last - first <= 2) {
      for (; tile + 2 <= tile_end; tile += 2)
        for_rows<2>(first, last, [&](auto at_once, int row) {
          tiles_by_rows<Weight, decltype(at_once)::value, 2>(x, stride, w, out, row, tile);
        });
    }
    for (; tile < tile_end; ++tile)
      for_rows<kRowsAtOnce>(first, last, [&](auto at_once, int row) {
        tiles_by_rows<Weight, decltype(at_once)::value, 1>(x, stride, w, out, row, tile);
      });
  }
}

}  // namespace

void linear_float(const float* x, ptrdiff_t stride, int rows, const PackedMatrix& w, const LinearOut& out,
                  int tile_begin, int tile_end) {
  const auto chosen = w.scheme == Scheme::BF16 ? linear<uint16_t> : linear<float>;
  chosen(x, stride, rows, w, out, tile_begin, tile_end);
}

}  // namespace headrace::HEADRACE_ISA
