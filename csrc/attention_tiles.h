// Register tiles of attention: scores of a few queries against runs of 16 keys, and sums of 16 weighted values.
// A tile's shape decides speed only: every score is one chain of multiply-adds over the head's dimensions in order,
// every output one chain over the tokens in order, whatever else is in the tile.
#pragma once
#include "kernels.h"
#include "simd.h"

namespace headrace::HEADRACE_ISA {

constexpr int kChunk = kLanes;  // tokens of one vector of keys
// Floats from one query's scores to the next's: one line more than a run, lest all fall into the same cache sets.
constexpr int kScoreStride = kAttentionScores;
#if defined(HEADRACE_ISA_avx512)
constexpr int kAccumulators = 12;  // vectors of sums that fit the registers
#elif defined(HEADRACE_ISA_avx2)
constexpr int kAccumulators = 6;
#else
constexpr int kAccumulators = 3;
#endif

// Loads stay on their side of this. Without it compilers hold every vector of a step at once, one more than there
// are registers, and a sum that lives in memory takes the time of all the others together.
HEADRACE_INLINE void one_at_a_time() { asm volatile("" ::: "memory"); }

constexpr int tile_depth(int queries) { return queries >= kAccumulators ? 1 : kAccumulators / queries; }

template <KVType type>
struct Stored;
template <>
struct Stored<KVType::F32> {
  using Item = float;
  static HEADRACE_INLINE F32x16 widen(const float* p) { return load(p); }
  static HEADRACE_INLINE F32x16 widen_part(const float* p, int n) { return load_part(p, n); }
};
template <>
struct Stored<KVType::BF16> {
  using Item = uint16_t;
  static HEADRACE_INLINE F32x16 widen(const uint16_t* p) { return load_bf16(p); }
  static HEADRACE_INLINE F32x16 widen_part(const uint16_t* p, int n) { return load_bf16_part(p, n); }
};
template <>
struct Stored<KVType::I8> {
  using Item = int8_t;
  static HEADRACE_INLINE F32x16 widen(const int8_t* p) { return load_i8(p); }
  static HEADRACE_INLINE F32x16 widen_part(const int8_t* p, int n) { return load_i8_part(p, n); }
};

// scores[i * kScoreStride + 16 c ..] = q_i . keys of chunk c.  q [k_dim][kQueryTile]; keys[c] [k_dim][key_stride].
// The keys after these are asked for meanwhile: blocks lie anywhere in memory, so the processor cannot guess them.
template <KVType type, int Q, int C>
HEADRACE_INLINE void score_tile(const float* q, const void* const* keys, const void* const* next, int key_stride,
                                int k_dim, float* scores) {
  using Item = typename Stored<type>::Item;
  F32x16 sum[Q][C];
#pragma GCC unroll 16
  for (int i = 0; i < Q; ++i)
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) sum[i][c] = zero();
  const Item *from[C], *ahead[C];
#pragma GCC unroll 16
  for (int c = 0; c < C; ++c) {
    from[c] = static_cast<const Item*>(keys[c]);
    ahead[c] = static_cast<const Item*>(next[c]);
  }
  const ptrdiff_t items = static_cast<ptrdiff_t>(k_dim) * key_stride;
  for (ptrdiff_t at = 0; at < items; at += key_stride, q += kQueryTile) {
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) {
      __builtin_prefetch(ahead[c] + at);
      const F32x16 key = Stored<type>::widen(from[c] + at);
#pragma GCC unroll 16
      for (int i = 0; i < Q; ++i) sum[i][c] = fma(set1(q[i]), key, sum[i][c]);
      one_at_a_time();
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < Q; ++i)
#pragma GCC unroll 16
    for (int c = 0; c < C; ++c) store(scores + i * kScoreStride + c * kChunk, sum[i][c]);
}

template <KVType type, int Q>
void score_run(const float* q, const void* const* keys, int chunks, int key_stride, int k_dim, float* scores) {
  constexpr int C = tile_depth(Q);
  int c = 0;
  const auto after = [&](int i, int n) { return keys + (i + n <= chunks ? i : chunks - n); };
  for (; c + C <= chunks; c += C)
    score_tile<type, Q, C>(q, keys + c, after(c + C, C), key_stride, k_dim, scores + c * kChunk);
  for (; c < chunks; ++c)
    score_tile<type, Q, 1>(q, keys + c, after(c + 1, 1), key_stride, k_dim, scores + c * kChunk);
}

// Scores of `queries` (1 .. kQueryTile) queries against `chunks` runs of keys.
template <KVType type>
HEADRACE_INLINE void score_queries(int queries, const float* q, const void* const* keys, int chunks, int key_stride,
                                   int k_dim, float* scores) {
  switch (queries) {
    case 1: return score_run<type, 1>(q, keys, chunks, key_stride, k_dim, scores);
    case 2: return score_run<type, 2>(q, keys, chunks, key_stride, k_dim, scores);
    case 3: return score_run<type, 3>(q, keys, chunks, key_stride, k_dim, scores);
    case 4: return score_run<type, 4>(q, keys, chunks, key_stride, k_dim, scores);
    case 5: return score_run<type, 5>(q, keys, chunks, key_stride, k_dim, scores);
    default: return score_run<type, 6>(q, keys, chunks, key_stride, k_dim, scores);
  }
}

// out[i * out_stride ..] += sum over tokens [begin, end) of weights[i * kScoreStride + t] * values[t], for 16 D columns.
template <KVType type, int Q, int D>
HEADRACE_INLINE void value_tile(const float* weights, const void* values, int value_stride, int begin, int end,
                                float* out, int out_stride) {
  const auto* v = static_cast<const typename Stored<type>::Item*>(values);
  F32x16 sum[Q][D];
#pragma GCC unroll 16
  for (int i = 0; i < Q; ++i)
#pragma GCC unroll 16
    for (int d = 0; d < D; ++d) sum[i][d] = load(out + i * out_stride + d * kLanes);
  for (int t = begin; t < end; ++t) {
#pragma GCC unroll 16
    for (int d = 0; d < D; ++d) {
      const F32x16 value = Stored<type>::widen(v + t * value_stride + d * kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < Q; ++i) sum[i][d] = fma(set1(weights[i * kScoreStride + t]), value, sum[i][d]);
      one_at_a_time();
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < Q; ++i)
#pragma GCC unroll 16
    for (int d = 0; d < D; ++d) store(out + i * out_stride + d * kLanes, sum[i][d]);
}

template <KVType type, int Q>
void value_run(const float* weights, const void* values, int value_stride, int columns, int begin, int end, float* out,
               int out_stride) {
  using Item = typename Stored<type>::Item;
  constexpr int D = tile_depth(Q);
  const Item* v = static_cast<const Item*>(values);
  int d = 0;
  for (; d + D * kLanes <= columns; d += D * kLanes)
    value_tile<type, Q, D>(weights, v + d, value_stride, begin, end, out + d, out_stride);
  for (; d < columns; d += kLanes)
    value_tile<type, Q, 1>(weights, v + d, value_stride, begin, end, out + d, out_stride);
}

// As value_tile, for 1 .. kQueryTile queries and `columns` (a multiple of 16) columns.
template <KVType type>
HEADRACE_INLINE void value_queries(int queries, const float* weights, const void* values, int value_stride,
                                   int columns, int begin, int end, float* out, int out_stride) {
  switch (queries) {
    case 1: return value_run<type, 1>(weights, values, value_stride, columns, begin, end, out, out_stride);
    case 2: return value_run<type, 2>(weights, values, value_stride, columns, begin, end, out, out_stride);
    case 3: return value_run<type, 3>(weights, values, value_stride, columns, begin, end, out, out_stride);
    case 4: return value_run<type, 4>(weights, values, value_stride, columns, begin, end, out, out_stride);
    case 5: return value_run<type, 5>(weights, values, value_stride, columns, begin, end, out, out_stride);
    default: return value_run<type, 6>(weights, values, value_stride, columns, begin, end, out, out_stride);
  }
}

}  // namespace headrace::HEADRACE_ISA
