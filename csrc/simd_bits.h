// Integer and bit operations on sixteen lanes, beside the float ones of simd.h.
#pragma once
#include "simd.h"

namespace headrace::HEADRACE_ISA {

#if defined(HEADRACE_ISA_avx512)

HEADRACE_INLINE I32x16 bits_of(F32x16 x) { return {_mm512_castps_si512(x.v)}; }
HEADRACE_INLINE F32x16 from_bits(I32x16 x) { return {_mm512_castsi512_ps(x.v)}; }
HEADRACE_INLINE I32x16 set1_int(int32_t x) { return {_mm512_set1_epi32(x)}; }
HEADRACE_INLINE I32x16 add(I32x16 a, I32x16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
HEADRACE_INLINE I32x16 sub(I32x16 a, I32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
HEADRACE_INLINE I32x16 bit_and(I32x16 a, I32x16 b) { return {_mm512_and_si512(a.v, b.v)}; }
HEADRACE_INLINE I32x16 bit_xor(I32x16 a, I32x16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
HEADRACE_INLINE I32x16 max_int(I32x16 a, I32x16 b) { return {_mm512_max_epi32(a.v, b.v)}; }
template <int n>
HEADRACE_INLINE I32x16 shift_right(I32x16 a) {
  return {_mm512_srai_epi32(a.v, n)};
}
HEADRACE_INLINE I32x16 truncate(F32x16 x) { return {_mm512_cvttps_epi32(x.v)}; }
HEADRACE_INLINE void store_i32(int32_t* p, I32x16 x) { _mm512_storeu_si512(p, x.v); }
// Bit i: a[i] >= b[i], a[i] > b[i].
HEADRACE_INLINE uint32_t mask_ge(F32x16 a, F32x16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }
HEADRACE_INLINE uint32_t mask_gt(F32x16 a, F32x16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }

#elif defined(HEADRACE_ISA_avx2)

HEADRACE_INLINE I32x16 bits_of(F32x16 x) { return {_mm256_castps_si256(x.lo), _mm256_castps_si256(x.hi)}; }
HEADRACE_INLINE F32x16 from_bits(I32x16 x) { return {_mm256_castsi256_ps(x.lo), _mm256_castsi256_ps(x.hi)}; }
HEADRACE_INLINE I32x16 set1_int(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
HEADRACE_INLINE I32x16 add(I32x16 a, I32x16 b) {
  return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
}
HEADRACE_INLINE I32x16 sub(I32x16 a, I32x16 b) {
  return {_mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi)};
}
HEADRACE_INLINE I32x16 bit_and(I32x16 a, I32x16 b) {
  return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)};
}
HEADRACE_INLINE I32x16 bit_xor(I32x16 a, I32x16 b) {
  return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
}
HEADRACE_INLINE I32x16 max_int(I32x16 a, I32x16 b) {
  return {_mm256_max_epi32(a.lo, b.lo), _mm256_max_epi32(a.hi, b.hi)};
}
template <int n>
HEADRACE_INLINE I32x16 shift_right(I32x16 a) {
  return {_mm256_srai_epi32(a.lo, n), _mm256_srai_epi32(a.hi, n)};
}
HEADRACE_INLINE I32x16 truncate(F32x16 x) { return {_mm256_cvttps_epi32(x.lo), _mm256_cvttps_epi32(x.hi)}; }
HEADRACE_INLINE void store_i32(int32_t* p, I32x16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.hi);
}
HEADRACE_INLINE uint32_t mask_ge(F32x16 a, F32x16 b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GE_OQ))) |
         static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GE_OQ))) << 8;
}
HEADRACE_INLINE uint32_t mask_gt(F32x16 a, F32x16 b) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ))) |
         static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ))) << 8;
}

#else

#define HEADRACE_EACH(type, expression)            \
  type r;                                          \
  for (int i = 0; i < 4; ++i) r.v[i] = expression; \
  return r

HEADRACE_INLINE I32x16 bits_of(F32x16 x) { HEADRACE_EACH(I32x16, (Int4)x.v[i]); }
HEADRACE_INLINE F32x16 from_bits(I32x16 x) { HEADRACE_EACH(F32x16, (Float4)x.v[i]); }
HEADRACE_INLINE I32x16 set1_int(int32_t x) { HEADRACE_EACH(I32x16, splat_int(x)); }
HEADRACE_INLINE I32x16 add(I32x16 a, I32x16 b) { HEADRACE_EACH(I32x16, a.v[i] + b.v[i]); }
HEADRACE_INLINE I32x16 sub(I32x16 a, I32x16 b) { HEADRACE_EACH(I32x16, a.v[i] - b.v[i]); }
HEADRACE_INLINE I32x16 bit_and(I32x16 a, I32x16 b) { HEADRACE_EACH(I32x16, a.v[i] & b.v[i]); }
HEADRACE_INLINE I32x16 bit_xor(I32x16 a, I32x16 b) { HEADRACE_EACH(I32x16, a.v[i] ^ b.v[i]); }
HEADRACE_INLINE I32x16 max_int(I32x16 a, I32x16 b) {
  HEADRACE_EACH(I32x16, (a.v[i] & (a.v[i] > b.v[i])) | (b.v[i] & ~(a.v[i] > b.v[i])));
}
template <int n>
HEADRACE_INLINE I32x16 shift_right(I32x16 a) {
  HEADRACE_EACH(I32x16, a.v[i] >> n);
}
HEADRACE_INLINE I32x16 truncate(F32x16 x) { HEADRACE_EACH(I32x16, __builtin_convertvector(x.v[i], Int4)); }
HEADRACE_INLINE void store_i32(int32_t* p, I32x16 x) { std::memcpy(p, &x, sizeof x); }
HEADRACE_INLINE uint32_t mask_ge(F32x16 a, F32x16 b) {
  uint32_t mask = 0;
  for (int i = 0; i < 16; ++i) mask |= static_cast<uint32_t>(a.v[i / 4][i % 4] >= b.v[i / 4][i % 4]) << i;
  return mask;
}
HEADRACE_INLINE uint32_t mask_gt(F32x16 a, F32x16 b) {
  uint32_t mask = 0;
  for (int i = 0; i < 16; ++i) mask |= static_cast<uint32_t>(a.v[i / 4][i % 4] > b.v[i / 4][i % 4]) << i;
  return mask;
}

#undef HEADRACE_EACH

#endif

// `chosen` where a > b, else `other`.
HEADRACE_INLINE F32x16 where_greater(F32x16 a, F32x16 b, F32x16 chosen, F32x16 other) {
  return where_less(b, a, chosen, other);
}

}  // namespace headrace::HEADRACE_ISA
