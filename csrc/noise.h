// Counter-based Gumbel noise and the exp and log that sampling rests on: the same float32 operations in the same
// order as ops/noise.py, so that every instruction set and the reference give the same bits. Fused operations are
// left out for that.
#pragma once
#include "simd_bits.h"

namespace headrace::HEADRACE_ISA::noise {

constexpr float kLargest = 22.5f;    // no noise is above it
constexpr int kTokens = 32;          // tokens whose noise is made at once
constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
constexpr int32_t kSqrtHalfBits = 0x3f3504f3;
constexpr float kSqrtHalf = 0.70710678f;

// What keys the noise of a row.
struct Stream {
  uint64_t seed;
  uint32_t choice, position;
};

HEADRACE_INLINE F32x16 step(F32x16 sum, F32x16 x, float coefficient) { return add(mul(sum, x), set1(coefficient)); }

// e^x for x <= 0; anything below -80 counts as -80.
HEADRACE_INLINE F32x16 exp(F32x16 x) {
  x = max(x, set1(-80.0f));
  const I32x16 n = truncate(sub(mul(x, set1(1.44269504f)), set1(0.5f)));
  const F32x16 whole = to_float(n);
  F32x16 r = sub(x, mul(whole, set1(kLn2High)));
  r = sub(r, mul(whole, set1(kLn2Low)));
  F32x16 p = set1(1.9875691500e-4f);
  p = step(p, r, 1.3981999507e-3f);
  p = step(p, r, 8.3334519073e-3f);
  p = step(p, r, 4.1665795894e-2f);
  p = step(p, r, 1.6666665459e-1f);
  p = step(p, r, 0.5f);
  p = add(add(mul(p, mul(r, r)), r), set1(1.0f));
  return mul(p, power_of_two(n));
}

// log(1 + f) + exponent * ln 2
HEADRACE_INLINE F32x16 log1p(F32x16 f, F32x16 exponent) {
  F32x16 p = set1(7.0376836292e-2f);
  p = step(p, f, -1.1514610310e-1f);
  p = step(p, f, 1.1676998740e-1f);
  p = step(p, f, -1.2420140846e-1f);
  p = step(p, f, 1.4249322787e-1f);
  p = step(p, f, -1.6668057665e-1f);
  p = step(p, f, 2.0000714765e-1f);
  p = step(p, f, -2.4999993993e-1f);
  p = step(p, f, 3.3333331174e-1f);
  const F32x16 square = mul(f, f);
  const F32x16 y = sub(add(mul(mul(p, f), square), mul(exponent, set1(kLn2Low))), mul(square, set1(0.5f)));
  return add(add(f, y), mul(exponent, set1(kLn2High)));
}

// x = (1 + f) * 2^exponent
HEADRACE_INLINE void split(F32x16 x, F32x16& f, F32x16& exponent) {
  const I32x16 bits = sub(bits_of(x), set1_int(kSqrtHalfBits));
  f = sub(from_bits(add(bit_and(bits, set1_int(0x007fffff)), set1_int(kSqrtHalfBits))), set1(1.0f));
  exponent = to_float(shift_right<23>(bits));
}

HEADRACE_INLINE F32x16 log(F32x16 x) {
  F32x16 f, exponent;
  split(x, f, exponent);
  return log1p(f, exponent);
}

// u = (half + 1/2) / 2^31, and 1 - u.
HEADRACE_INLINE F32x16 uniform(I32x16 half) { return mul(add(to_float(half), set1(0.5f)), set1(0x1p-31f)); }
HEADRACE_INLINE F32x16 distance_to_one(I32x16 half) { return uniform(bit_xor(half, set1_int(0x7fffffff))); }

// -log(-log(u)); near 1 the distance to 1 is taken from the integer.
HEADRACE_INLINE F32x16 gumbel(I32x16 half) {
  const F32x16 u = uniform(half), below_one = distance_to_one(half);
  F32x16 f, exponent;
  split(u, f, exponent);
  const F32x16 near = set1(kSqrtHalf);
  f = where_greater(u, near, sub(zero(), below_one), f);
  exponent = where_greater(u, near, zero(), exponent);
  return sub(zero(), log(sub(zero(), log1p(f, exponent))));
}

constexpr uint32_t kMultiplier0 = 0xd2511f53u, kMultiplier1 = 0xcd9e8d57u, kWeyl0 = 0x9e3779b9u, kWeyl1 = 0xbb67ae85u;

#if defined(HEADRACE_ISA_avx512) || defined(HEADRACE_ISA_avx2)

HEADRACE_INLINE void multiply(__m256i a, uint32_t multiplier, __m256i& high, __m256i& low) {
  const __m256i m = _mm256_set1_epi32(static_cast<int32_t>(multiplier));
  const __m256i even = _mm256_mul_epu32(a, m), odd = _mm256_mul_epu32(_mm256_srli_epi64(a, 32), m);
  low = _mm256_blend_epi32(even, _mm256_slli_epi64(odd, 32), 0xaa);
  high = _mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa);
}

// Halved words of tokens [token, token + 32); token is a multiple of 4.
HEADRACE_INLINE void philox(const Stream& stream, uint32_t token, int32_t* halves) {
  __m256i c0 = _mm256_add_epi32(_mm256_set1_epi32(static_cast<int32_t>(token / 4)),
                                _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  __m256i c1 = _mm256_set1_epi32(static_cast<int32_t>(stream.position));
  __m256i c2 = _mm256_set1_epi32(static_cast<int32_t>(stream.choice));
  __m256i c3 = _mm256_setzero_si256();
  uint32_t key0 = static_cast<uint32_t>(stream.seed), key1 = static_cast<uint32_t>(stream.seed >> 32);
  for (int round = 0; round < 10; ++round, key0 += kWeyl0, key1 += kWeyl1) {
    __m256i high0, low0, high1, low1;
    multiply(c0, kMultiplier0, high0, low0);
    multiply(c2, kMultiplier1, high1, low1);
    c0 = _mm256_xor_si256(_mm256_xor_si256(high1, c1), _mm256_set1_epi32(static_cast<int32_t>(key0)));
    c2 = _mm256_xor_si256(_mm256_xor_si256(high0, c3), _mm256_set1_epi32(static_cast<int32_t>(key1)));
    c1 = low1;
    c3 = low0;
  }
  // From word-major to token order.
  const __m256i a = _mm256_unpacklo_epi32(c0, c1), b = _mm256_unpackhi_epi32(c0, c1);
  const __m256i c = _mm256_unpacklo_epi32(c2, c3), d = _mm256_unpackhi_epi32(c2, c3);
  const __m256i t0 = _mm256_unpacklo_epi64(a, c), t1 = _mm256_unpackhi_epi64(a, c);  // counters 0, 4 and 1, 5
  const __m256i t2 = _mm256_unpacklo_epi64(b, d), t3 = _mm256_unpackhi_epi64(b, d);  // counters 2, 6 and 3, 7
  __m256i* out = reinterpret_cast<__m256i*>(halves);
  _mm256_storeu_si256(out, _mm256_srli_epi32(_mm256_permute2x128_si256(t0, t1, 0x20), 1));
  _mm256_storeu_si256(out + 1, _mm256_srli_epi32(_mm256_permute2x128_si256(t2, t3, 0x20), 1));
  _mm256_storeu_si256(out + 2, _mm256_srli_epi32(_mm256_permute2x128_si256(t0, t1, 0x31), 1));
  _mm256_storeu_si256(out + 3, _mm256_srli_epi32(_mm256_permute2x128_si256(t2, t3, 0x31), 1));
}

#else

HEADRACE_INLINE void philox(const Stream& stream, uint32_t token, int32_t* halves) {
  for (uint32_t i = 0; i < kTokens / 4; ++i) {
    uint32_t c0 = token / 4 + i, c1 = stream.position, c2 = stream.choice, c3 = 0;
    uint32_t key0 = static_cast<uint32_t>(stream.seed), key1 = static_cast<uint32_t>(stream.seed >> 32);
    for (int round = 0; round < 10; ++round, key0 += kWeyl0, key1 += kWeyl1) {
      const uint64_t product0 = static_cast<uint64_t>(c0) * kMultiplier0;
      const uint64_t product1 = static_cast<uint64_t>(c2) * kMultiplier1;
      c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key0;
      c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key1;
      c1 = static_cast<uint32_t>(product1);
      c3 = static_cast<uint32_t>(product0);
    }
    const uint32_t words[4] = {c0, c1, c2, c3};
    for (int j = 0; j < 4; ++j) halves[4 * i + j] = static_cast<int32_t>(words[j] >> 1);
  }
}

#endif

}  // namespace headrace::HEADRACE_ISA::noise
