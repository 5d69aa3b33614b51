// Sixteen float lanes as one type on every instruction set, so that a kernel is written once. An operation gives
// the same bits on every set, except that fma() rounds twice where the processor has no fused one. Reductions add
// in one fixed tree. Included only by sources that are compiled per instruction set (namespace HEADRACE_ISA).
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(HEADRACE_ISA_avx2) || defined(HEADRACE_ISA_avx512)
#include <immintrin.h>
#endif

#define HEADRACE_INLINE inline __attribute__((always_inline))

#if defined(HEADRACE_ISA_avx512)
#include "simd_avx512.h"
#elif defined(HEADRACE_ISA_avx2)
#include "simd_avx2.h"
#else
#include "simd_portable.h"
#endif

namespace headrace::HEADRACE_ISA {

constexpr int kLanes = 16;

HEADRACE_INLINE int min_int(int a, int b) { return a < b ? a : b; }
HEADRACE_INLINE int max_int(int a, int b) { return a > b ? a : b; }

// The first n lanes, the others 0; n < 16. Never reads behind them.
HEADRACE_INLINE F32x16 load_part(const float* p, int n) {
  alignas(64) float lanes[kLanes] = {};
  std::memcpy(lanes, p, sizeof(float) * n);
  return load(lanes);
}
HEADRACE_INLINE F32x16 load_bf16_part(const uint16_t* p, int n) {
  alignas(64) uint16_t lanes[kLanes] = {};
  std::memcpy(lanes, p, sizeof(uint16_t) * n);
  return load_bf16(lanes);
}
HEADRACE_INLINE F32x16 load_i8_part(const int8_t* p, int n) {
  alignas(64) int8_t lanes[kLanes] = {};
  std::memcpy(lanes, p, n);
  return load_i8(lanes);
}
HEADRACE_INLINE void store_part(float* p, F32x16 x, int n) {
  alignas(64) float lanes[kLanes];
  store(lanes, x);
  std::memcpy(p, lanes, sizeof(float) * n);
}

HEADRACE_INLINE uint16_t narrow_bf16(float x) {
  uint32_t u;
  std::memcpy(&u, &x, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((u >> 16) | 0x40);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1)) >> 16);
}
HEADRACE_INLINE float widen_bf16(uint16_t x) {
  uint32_t u = static_cast<uint32_t>(x) << 16;
  float y;
  std::memcpy(&y, &u, 4);
  return y;
}

// e^x to 2 units in the last place (Cephes expf): clamped to the normal range, 0 below it; NaN stays NaN.
HEADRACE_INLINE F32x16 exp(F32x16 x) {
  const F32x16 low = set1(-87.33654f);
  F32x16 c = min(set1(88.37626f), max(low, x));
  I32x16 n = round_to_int(mul(c, set1(1.44269504088896341f)));
  F32x16 nf = to_float(n);
  F32x16 r = fma(nf, set1(-0.693359375f), c);
  r = fma(nf, set1(2.12194440e-4f), r);
  F32x16 p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = add(fma(p, mul(r, r), r), set1(1.0f));
  return zero_where_less(x, low, mul(p, power_of_two(n)));
}

// tanh x (Cephes tanhf): a polynomial near 0, by exp elsewhere.
HEADRACE_INLINE F32x16 tanh(F32x16 x) {
  F32x16 z = mul(x, x);
  F32x16 p = set1(-5.70498872745e-3f);
  p = fma(p, z, set1(2.06390887954e-2f));
  p = fma(p, z, set1(-5.37397155531e-2f));
  p = fma(p, z, set1(1.33314422036e-1f));
  p = fma(p, z, set1(-3.33332819422e-1f));
  p = fma(mul(p, z), x, x);
  F32x16 far = sub(set1(1.0f), div(set1(2.0f), add(exp(add(abs(x), abs(x))), set1(1.0f))));
  return where_less(abs(x), set1(0.625f), p, copy_sign(far, x));
}

}  // namespace headrace::HEADRACE_ISA
