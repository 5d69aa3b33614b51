// Quantized linear layers: int8 activations with Q8 or Q4 weights. For one row and one output the sum is, whatever
// the other rows, tiles and threads: within a run of 32 along k exact; runs added in order by two fused
// multiply-adds (scale, then minimum, which Q8 has where dot.h reads it with an offset) into a partial sum per
// k_segment; partial sums added in order.
#include <type_traits>

#include "dot.h"
#include "kernel_functions.h"
#include "linear_tile.h"
#include "scratch.h"

namespace headrace::HEADRACE_ISA {

namespace {

constexpr int kRun = kActivationGroup;
// Rows that share what it takes to unpack weights, while sums and weights still fit the registers.
#if defined(HEADRACE_ISA_avx512)
constexpr int kRowsAtOnce = 8, kLastRows = 8;
#else
constexpr int kRowsAtOnce = 4, kLastRows = 6;
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

// R rows of activations side by side, so that one pointer and few registers reach them all:
// q [k/4][R][4], scale and scaled_sum [k/32][R]. One row lies so as it is.
struct RowGroup {
  const int8_t* q;
  const float* scale;
  const float* scaled_sum;
};

template <Scheme scheme, int R>
HEADRACE_INLINE void dot_run(const uint8_t* data, const int8_t* q, F32x16 (&sums)[R]) {
  if constexpr (scheme == Scheme::Q4) {
    Dot4 dots[R];
    for (int r = 0; r < R; ++r) dots[r] = no_dot4();
#pragma GCC unroll 4
    for (int i = 0; i < kRun / 8; ++i) {
      Weights low, high;
      load_q4(data + 64 * i, low, high);
      for (int r = 0; r < R; ++r) dots[r] = dot(dots[r], low, load_quad(q + 4 * (2 * i * R + r)));
      for (int r = 0; r < R; ++r) dots[r] = dot(dots[r], high, load_quad(q + 4 * ((2 * i + 1) * R + r)));
    }
    for (int r = 0; r < R; ++r) sums[r] = to_float(dots[r]);
  } else {
    Dot8 dots[R];
    for (int r = 0; r < R; ++r) dots[r] = no_dot8();
#pragma GCC unroll 8
    for (int i = 0; i < kRun / 4; ++i) {
      const Weights w = load_q8(data + 64 * i);
      for (int r = 0; r < R; ++r) dots[r] = dot(dots[r], w, load_quad(q + 4 * (i * R + r)));
    }
    for (int r = 0; r < R; ++r) sums[r] = to_float(dots[r]);
  }
}

template <Scheme scheme, class Scale, int R>
void tile_rows(RowGroup x, Tile<Scale> tile, int k, int group, int k_segment, F32x16 (&total)[R]) {
  constexpr ptrdiff_t run_bytes = kTile * kRun / (scheme == Scheme::Q4 ? 2 : 1);
  for (int r = 0; r < R; ++r) total[r] = zero();
  int in_group = 0;
  for (int segment = 0; segment < k; segment += k_segment) {
    F32x16 part[R];
    for (int r = 0; r < R; ++r) part[r] = zero();
    for (int left = min_int(k_segment, k - segment); left > 0; left -= kRun) {
      F32x16 sums[R];
      for (int i = 0; i < run_bytes; i += 64) __builtin_prefetch(tile.data + kPrefetch + i);
      dot_run<scheme, R>(tile.data, x.q, sums);
      const F32x16 weight_scale = load_scale(tile.scale);
      for (int r = 0; r < R; ++r) part[r] = fma(mul(weight_scale, set1(x.scale[r])), sums[r], part[r]);
      if constexpr (scheme == Scheme::Q4) {
        const F32x16 minimum = load_scale(tile.minimum);
        for (int r = 0; r < R; ++r) part[r] = fma(minimum, set1(x.scaled_sum[r]), part[r]);
      } else if constexpr (kOffset8 != 0) {
        const F32x16 minimum = mul(weight_scale, set1(-kOffset8));
        for (int r = 0; r < R; ++r) part[r] = fma(minimum, set1(x.scaled_sum[r]), part[r]);
      }
      x.q += R * kRun;
      x.scale += R;
      x.scaled_sum += R;
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

// A block of rows in groups that lie side by side: kept for the next task of the same rows. A thread has one; its room is
// no part of it, as what belongs to a thread is zeroed, and so in memory, when the thread first comes by.
class RowBlock {
 public:
  RowBlock() {
    room_.reserve(kValues + 2 * sizeof(float) * (kValues / kRun));
    scale_ = room_.data();
    scaled_sum_ = scale_ + kValues / kRun;
    q_ = reinterpret_cast<int8_t*>(scaled_sum_ + kValues / kRun);
  }
  static bool holds(int k) { return k <= kLongest; }
  static int rows(int k) { return max_int(kRowsAtOnce, static_cast<int>(kRowBlockBytes / k) / kRowsAtOnce * kRowsAtOnce); }

  void hold(const QuantizedRows& x, int first, int last) {
    if (x.version != 0 && x.version == x_.version && x.q == x_.q && first == first_ && last == last_) return;
    x_ = x;
    first_ = first;
    last_ = last;
    for_rows<kRowsAtOnce, kLastRows>(first, last, [&](auto at_once, int row) {
      constexpr int R = decltype(at_once)::value;
      if constexpr (R > 1) {
        interleave_quads<R>(x.q + static_cast<ptrdiff_t>(row) * x.k, x.k, q_ + at(row));
        const ptrdiff_t runs = x.k / kRun, from = row * runs, to = at(row) / kRun;
        for (ptrdiff_t run = 0; run < runs; ++run)
          for (int r = 0; r < R; ++r) {
            scale_[to + run * R + r] = x.scale[from + r * runs + run];
            scaled_sum_[to + run * R + r] = x.scaled_sum[from + r * runs + run];
          }
      }
    });
  }
  template <int R>
  RowGroup group(int row) const {
    const ptrdiff_t from = static_cast<ptrdiff_t>(row) * x_.k, runs = from / kRun;
    if constexpr (R == 1) return {x_.q + from, x_.scale + runs, x_.scaled_sum + runs};
    return {q_ + at(row), scale_ + at(row) / kRun, scaled_sum_ + at(row) / kRun};
  }

 private:
  static constexpr int kLongest = 32768;
  static constexpr ptrdiff_t kValues = kLongest * kRowsAtOnce;
  static_assert(kValues >= kRowBlockBytes, "a block fits");
  ptrdiff_t at(int row) const { return static_cast<ptrdiff_t>(row - first_) * x_.k; }

  QuantizedRows x_;
  int first_, last_;
  Scratch room_;  // only what a block needs is ever touched
  float *scale_, *scaled_sum_;
  int8_t* q_;
};

template <Scheme scheme, class Scale, int R>
HEADRACE_INLINE void finish_rows(RowGroup x, const Tile<Scale>& tile, const PackedMatrix& w, const LinearOut& out,
                                 int row, int column) {
  // Outputs lie a row apart: fetched while their sums are made.
  for (int r = 0; r < R; ++r) __builtin_prefetch(out.y + (row + r) * out.stride + column, 1);
  F32x16 total[R];
  tile_rows<scheme, Scale, R>(x, tile, w.k, w.group, out.k_segment > 0 ? out.k_segment : w.k, total);
  for (int r = 0; r < R; ++r)
    finish_tile(total[r], out, out.y + (row + r) * out.stride + column, out.bias ? out.bias + column : nullptr,
                w.n - column);
}

template <Scheme scheme, class Scale>
void linear(const QuantizedRows& x, int rows, const PackedMatrix& w, const LinearOut& out, int tile_begin,
            int tile_end) {
  const ptrdiff_t tile_bytes = static_cast<ptrdiff_t>(w.k) * kTile / (scheme == Scheme::Q4 ? 2 : 1);
  const ptrdiff_t tile_scales = static_cast<ptrdiff_t>(w.k / w.group) * kTile;
  const auto tile_at = [&](int t) {
    Tile<Scale> tile{static_cast<const uint8_t*>(w.data) + t * tile_bytes,
                     static_cast<const Scale*>(w.scale) + t * tile_scales, nullptr};
    if constexpr (scheme == Scheme::Q4) tile.minimum = static_cast<const Scale*>(w.minimum) + t * tile_scales;
    return tile;
  };
  if (rows == 1 || !RowBlock::holds(w.k)) {
    const ptrdiff_t runs = w.k / kRun;
    for (int t = tile_begin; t < tile_end; ++t)
      for (int row = 0; row < rows; ++row)
        finish_rows<scheme, Scale, 1>({x.q + static_cast<ptrdiff_t>(row) * w.k, x.scale + row * runs, x.scaled_sum + row * runs},
                                      tile_at(t), w, out, row, t * kTile);
    return;
  }
  static thread_local RowBlock groups;
  const int block = RowBlock::rows(w.k);
  for (int first = 0; first < rows; first += block) {
    const int last = min_int(first + block, rows);
    groups.hold(x, first, last);
    for (int t = tile_begin; t < tile_end; ++t)
      for_rows<kRowsAtOnce, kLastRows>(first, last, [&](auto at_once, int row) {
        constexpr int R = decltype(at_once)::value;
        finish_rows<scheme, Scale, R>(groups.template group<R>(row), tile_at(t), w, out, row, t * kTile);
      });
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
