// AVX-512 (F, BW, DQ, VL): sixteen lanes are one register.
#pragma once

namespace headrace::HEADRACE_ISA {

struct F32x16 {
  __m512 v;
};
struct I32x16 {
  __m512i v;
};

HEADRACE_INLINE F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
HEADRACE_INLINE void store(float* p, F32x16 x) { _mm512_storeu_ps(p, x.v); }
HEADRACE_INLINE F32x16 set1(float x) { return {_mm512_set1_ps(x)}; }
HEADRACE_INLINE F32x16 zero() { return {_mm512_setzero_ps()}; }
HEADRACE_INLINE F32x16 add(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
HEADRACE_INLINE F32x16 sub(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
HEADRACE_INLINE F32x16 mul(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
HEADRACE_INLINE F32x16 div(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
// a * b + c
HEADRACE_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// Both give b where either is NaN.
HEADRACE_INLINE F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }
HEADRACE_INLINE F32x16 min(F32x16 a, F32x16 b) { return {_mm512_min_ps(a.v, b.v)}; }
HEADRACE_INLINE F32x16 abs(F32x16 a) { return {_mm512_abs_ps(a.v)}; }
// |a| with the sign of b; a is not negative.
HEADRACE_INLINE F32x16 copy_sign(F32x16 a, F32x16 b) {
  return {_mm512_or_ps(a.v, _mm512_and_ps(b.v, _mm512_set1_ps(-0.0f)))};
}
// a < b ? x : y
HEADRACE_INLINE F32x16 where_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}
// a < b ? 0 : x
HEADRACE_INLINE F32x16 zero_where_less(F32x16 a, F32x16 b, F32x16 x) {
  return {_mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_NLT_UQ), x.v)};
}
// x in lanes begin <= i < end, `other` elsewhere.
HEADRACE_INLINE F32x16 keep_lanes(F32x16 x, int begin, int end, F32x16 other) {
  uint32_t below_end = end >= 16 ? 0xffffu : end <= 0 ? 0u : (1u << end) - 1;
  uint32_t below_begin = begin >= 16 ? 0xffffu : begin <= 0 ? 0u : (1u << begin) - 1;
  return {_mm512_mask_blend_ps(static_cast<__mmask16>(below_end & ~below_begin), other.v, x.v)};
}

// To nearest, ties to even; |x| < 2^22.
HEADRACE_INLINE I32x16 round_to_int(F32x16 x) { return {_mm512_cvtps_epi32(x.v)}; }
HEADRACE_INLINE F32x16 to_float(I32x16 x) { return {_mm512_cvtepi32_ps(x.v)}; }
HEADRACE_INLINE I32x16 load_i32(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
// 2^n, -127 < n < 128
HEADRACE_INLINE F32x16 power_of_two(I32x16 n) {
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(n.v, _mm512_set1_epi32(127)), 23))};
}
// Lanes must fit int8.
HEADRACE_INLINE void store_i8(int8_t* p, I32x16 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(x.v));
}
HEADRACE_INLINE F32x16 load_i8(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
HEADRACE_INLINE F32x16 load_bf16(const uint16_t* p) {
  __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16))};
}
HEADRACE_INLINE void store_bf16(uint16_t* p, F32x16 x) {
  __m512i u = _mm512_castps_si512(x.v);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(u, _mm512_set1_epi32(0x7fff)), odd), 16);
  __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
  __m512i words = _mm512_mask_blend_epi32(_mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q), rounded, quiet);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(words));
}

// Lanes i and i + 8 first, then 4, 2, 1 apart.
HEADRACE_INLINE float reduce_add(F32x16 x) {
  __m256 a = _mm256_add_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  __m128 b = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_add_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_add_ss(b, _mm_shuffle_ps(b, b, 1)));
}
HEADRACE_INLINE float reduce_max(F32x16 x) {
  __m256 a = _mm256_max_ps(_mm512_castps512_ps256(x.v), _mm512_extractf32x8_ps(x.v, 1));
  __m128 b = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  b = _mm_max_ps(b, _mm_movehl_ps(b, b));
  return _mm_cvtss_f32(_mm_max_ss(b, _mm_shuffle_ps(b, b, 1)));
}

}  // namespace headrace::HEADRACE_ISA
