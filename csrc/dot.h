// Exact dot products of int8 activations with packed weights: sixteen outputs, four values along k at a time. A Dot
// gathers one run of 32 along k and is then read as sixteen exact integers, so its order never shows.
// Activations lie in -127..127 (kernels.h), weights in -128..127 (Q8) or 0..15 (Q4). Where kOffset8 is not 0, Q8
// weights are read with it added and its share of every sum is for the caller to take away.
#pragma once
#include "simd.h"

namespace headrace::HEADRACE_ISA {

#if defined(HEADRACE_ISA_avx512)

using Quad = __m512i;     // the same four activations for every output
using Weights = __m512i;  // [16 outputs][4], unsigned
struct Dot4 {
  __m512i sum;
};
using Dot8 = Dot4;
// The instruction multiplies unsigned by signed, so that -128..127 becomes 0..255: one operation for all rows.
constexpr float kOffset8 = 128.0f;

HEADRACE_INLINE Dot4 no_dot4() { return {_mm512_setzero_si512()}; }
HEADRACE_INLINE Dot8 no_dot8() { return no_dot4(); }
HEADRACE_INLINE Quad load_quad(const int8_t* q) {
  int32_t word;
  std::memcpy(&word, q, 4);
  return _mm512_set1_epi32(word);
}
HEADRACE_INLINE void load_q4(const uint8_t* p, Weights& low, Weights& high) {
  const __m512i mask = _mm512_set1_epi8(15), bytes = _mm512_load_si512(p);
  low = _mm512_and_si512(bytes, mask);
  high = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), mask);
}
HEADRACE_INLINE Weights load_q8(const uint8_t* p) {
  return _mm512_xor_si512(_mm512_load_si512(p), _mm512_set1_epi8(-128));
}
HEADRACE_INLINE Dot4 dot(Dot4 d, Weights w, Quad a) { return {_mm512_dpbusd_epi32(d.sum, w, a)}; }
HEADRACE_INLINE F32x16 to_float(Dot4 d) { return {_mm512_cvtepi32_ps(d.sum)}; }
HEADRACE_INLINE F32x16 load_half(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

#elif defined(HEADRACE_ISA_avx2)  // avxvnni too

using Quad = __m256i;
struct Weights {
  __m256i lo, hi;
};
struct Dot8 {  // int32
  __m256i lo, hi;
};

HEADRACE_INLINE Dot8 no_dot8() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
HEADRACE_INLINE Quad load_quad(const int8_t* q) {
  int32_t word;
  std::memcpy(&word, q, 4);
  return _mm256_set1_epi32(word);
}
HEADRACE_INLINE Weights load_bytes(const uint8_t* p) {
  const __m256i* vectors = reinterpret_cast<const __m256i*>(p);
  return {_mm256_load_si256(vectors), _mm256_load_si256(vectors + 1)};
}
HEADRACE_INLINE void load_q4(const uint8_t* p, Weights& low, Weights& high) {
  const __m256i mask = _mm256_set1_epi8(15);
  const Weights bytes = load_bytes(p);
  low = {_mm256_and_si256(bytes.lo, mask), _mm256_and_si256(bytes.hi, mask)};
  high = {_mm256_and_si256(_mm256_srli_epi16(bytes.lo, 4), mask),
          _mm256_and_si256(_mm256_srli_epi16(bytes.hi, 4), mask)};
}
// Adds in the order written: left alone, GCC reassociates the sums of a run and spills all of its products.
HEADRACE_INLINE void in_order(__m256i& sum) { asm("" : "+x"(sum)); }
HEADRACE_INLINE F32x16 to_float(Dot8 d) { return {_mm256_cvtepi32_ps(d.lo), _mm256_cvtepi32_ps(d.hi)}; }

#if defined(HEADRACE_ISA_avxvnni)

using Dot4 = Dot8;
constexpr float kOffset8 = 128.0f;

HEADRACE_INLINE Dot4 no_dot4() { return no_dot8(); }
HEADRACE_INLINE Weights load_q8(const uint8_t* p) {
  const __m256i offset = _mm256_set1_epi8(-128);
  const Weights w = load_bytes(p);
  return {_mm256_xor_si256(w.lo, offset), _mm256_xor_si256(w.hi, offset)};
}
HEADRACE_INLINE Dot4 dot(Dot4 d, Weights w, Quad a) {
  d.lo = _mm256_dpbusd_avx_epi32(d.lo, w.lo, a);
  d.hi = _mm256_dpbusd_avx_epi32(d.hi, w.hi, a);
  in_order(d.lo);
  in_order(d.hi);
  return d;
}

#else

struct Dot4 {  // int16: eight products of at most 2 * 15 * 127 fit
  __m256i lo, hi;
};
constexpr float kOffset8 = 0.0f;

HEADRACE_INLINE Dot4 no_dot4() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
HEADRACE_INLINE Weights load_q8(const uint8_t* p) { return load_bytes(p); }
HEADRACE_INLINE Dot4 dot(Dot4 d, Weights w, Quad a) {
  d.lo = _mm256_add_epi16(d.lo, _mm256_maddubs_epi16(w.lo, a));
  d.hi = _mm256_add_epi16(d.hi, _mm256_maddubs_epi16(w.hi, a));
  in_order(d.lo);
  in_order(d.hi);
  return d;
}
// |w| is unsigned (128 fits), its sign moves to the activation: 2 * 128 * 127 does not saturate int16.
HEADRACE_INLINE __m256i dot8_half(__m256i w, __m256i a) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w));
  return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
HEADRACE_INLINE Dot8 dot(Dot8 d, Weights w, Quad a) {
  d.lo = _mm256_add_epi32(d.lo, dot8_half(w.lo, a));
  d.hi = _mm256_add_epi32(d.hi, dot8_half(w.hi, a));
  in_order(d.lo);
  in_order(d.hi);
  return d;
}
HEADRACE_INLINE F32x16 to_float(Dot4 d) {
  const __m256i ones = _mm256_set1_epi16(1);
  return {_mm256_cvtepi32_ps(_mm256_madd_epi16(d.lo, ones)), _mm256_cvtepi32_ps(_mm256_madd_epi16(d.hi, ones))};
}

#endif

HEADRACE_INLINE F32x16 load_half(const uint16_t* p) {
  const __m128i* vectors = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(vectors)), _mm256_cvtph_ps(_mm_loadu_si128(vectors + 1))};
}

#else

struct Quad {
  int32_t a[4];
};
struct Weights {
  int8_t w[64];
};
struct Dot4 {
  int32_t sum[16];
};
struct Dot8 {
  int32_t sum[16];
};

constexpr float kOffset8 = 0.0f;

HEADRACE_INLINE Dot4 no_dot4() { return {}; }
HEADRACE_INLINE Dot8 no_dot8() { return {}; }
HEADRACE_INLINE Quad load_quad(const int8_t* q) { return {{q[0], q[1], q[2], q[3]}}; }
HEADRACE_INLINE void load_q4(const uint8_t* p, Weights& low, Weights& high) {
  for (int i = 0; i < 64; ++i) low.w[i] = static_cast<int8_t>(p[i] & 15);
  for (int i = 0; i < 64; ++i) high.w[i] = static_cast<int8_t>(p[i] >> 4);
}
HEADRACE_INLINE Weights load_q8(const uint8_t* p) {
  Weights w;
  std::memcpy(w.w, p, 64);
  return w;
}
template <class Dot>
HEADRACE_INLINE Dot dot(Dot d, const Weights& w, const Quad& a) {
  for (int i = 0; i < 16; ++i)
    d.sum[i] += w.w[4 * i] * a.a[0] + w.w[4 * i + 1] * a.a[1] + w.w[4 * i + 2] * a.a[2] + w.w[4 * i + 3] * a.a[3];
  return d;
}
template <class Dot>
HEADRACE_INLINE F32x16 to_float(const Dot& d) {
  return to_float(load_i32(d.sum));
}
HEADRACE_INLINE F32x16 load_half(const uint16_t* p) {
  float lanes[16];
  for (int i = 0; i < 16; ++i) {
    // Exponent and mantissa moved into place are the value times 2^-112, subnormal halves included.
    uint32_t magnitude = (p[i] & 0x7fffu) << 13, sign = (p[i] & 0x8000u) << 16;
    float x;
    std::memcpy(&x, &magnitude, 4);
    x *= 0x1p112f;
    std::memcpy(&magnitude, &x, 4);
    magnitude |= sign;
    std::memcpy(&lanes[i], &magnitude, 4);
  }
  return load(lanes);
}

#endif

// R rows of k bytes, one after the other, as [k/4][R][4].
template <int R>
HEADRACE_INLINE void interleave_quads(const int8_t* rows, ptrdiff_t k, int8_t* out) {
  int done = 0;
#if defined(HEADRACE_ISA_avx2) || defined(HEADRACE_ISA_avx512)
  for (; done + 4 <= R; done += 4)
    for (ptrdiff_t i = 0; i < k; i += 16) {
      const auto quads = [&](int row) {
        return _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + (done + row) * k + i));
      };
      const __m128i a = quads(0), b = quads(1), c = quads(2), d = quads(3);
      const __m128i ab = _mm_unpacklo_epi32(a, b), cd = _mm_unpacklo_epi32(c, d);
      const __m128i ab2 = _mm_unpackhi_epi32(a, b), cd2 = _mm_unpackhi_epi32(c, d);
      const __m128i columns[4] = {_mm_unpacklo_epi64(ab, cd), _mm_unpackhi_epi64(ab, cd), _mm_unpacklo_epi64(ab2, cd2),
                                  _mm_unpackhi_epi64(ab2, cd2)};
      for (int j = 0; j < 4; ++j)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(out + (i + 4 * j) * R + 4 * done), columns[j]);
    }
#endif
  for (; done < R; ++done)
    for (ptrdiff_t i = 0; i < k; i += 4) std::memcpy(out + i * R + 4 * done, rows + done * k + i, 4);
}

}  // namespace headrace::HEADRACE_ISA
