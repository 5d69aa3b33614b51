// The AVX-512 and AVX-VNNI instructions that kernels use, in AVX2 and by their definitions: compiled before a kernel's own
// sources (HEADRACE_EMULATE in CMakeLists.txt), whose calls then find these names before the compiler's. So those paths are
// tested where no processor has them. How long an instruction takes here says nothing.
#pragma once
#include <immintrin.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>

#define HEADRACE_EMULATED static inline __attribute__((always_inline, unused))
// Macros in some compilers.
#undef _mm512_cmp_ps_mask
#undef _mm512_extractf32x8_ps
#undef _mm512_slli_epi32
#undef _mm512_srai_epi32
#undef _mm512_srli_epi16
#undef _mm512_srli_epi32

namespace headrace::HEADRACE_ISA {

HEADRACE_EMULATED __m256i _mm256_dpbusd_avx_epi32(__m256i sum, __m256i w, __m256i a) {
  const __m256i even = _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(255)),
                                         _mm256_srai_epi16(_mm256_slli_epi16(a, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), _mm256_srai_epi16(a, 8));
  return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}

namespace emulated {

template <class To, class From>
HEADRACE_EMULATED To as(const From& x) {
  static_assert(sizeof(To) == sizeof(From), "the same bits");
  To y;
  std::memcpy(&y, &x, sizeof y);
  return y;
}
template <class To>
HEADRACE_EMULATED To read(const void* p) {
  To x;
  std::memcpy(&x, p, sizeof x);
  return x;
}

// Lanes as they are numbered, and the halves that AVX2 has instructions for.
typedef int32_t Int __attribute__((vector_size(64)));
typedef uint32_t Word __attribute__((vector_size(64)));
typedef uint16_t Short __attribute__((vector_size(64)));
struct Floats {
  __m256 half[2];
};
struct Ints {
  __m256i half[2];
};
HEADRACE_EMULATED Floats halves(__m512 x) { return as<Floats>(x); }
HEADRACE_EMULATED Ints halves(__m512i x) { return as<Ints>(x); }
HEADRACE_EMULATED __m512 join(__m256 low, __m256 high) { return as<__m512>(Floats{{low, high}}); }
HEADRACE_EMULATED __m512i join(__m256i low, __m256i high) { return as<__m512i>(Ints{{low, high}}); }

// op on the halves of all arguments.
template <class Op, class... Wide>
HEADRACE_EMULATED auto by_halves(const Op& op, const Wide&... x) {
  return join(op(halves(x).half[0]...), op(halves(x).half[1]...));
}

}  // namespace emulated

HEADRACE_EMULATED __m512 _mm512_loadu_ps(const void* p) { return emulated::read<__m512>(p); }
HEADRACE_EMULATED __m512i _mm512_loadu_si512(const void* p) { return emulated::read<__m512i>(p); }
HEADRACE_EMULATED __m512i _mm512_load_si512(const void* p) {
  if (reinterpret_cast<uintptr_t>(p) % 64) std::abort();
  return _mm512_loadu_si512(p);
}
HEADRACE_EMULATED void _mm512_storeu_ps(void* p, __m512 x) { std::memcpy(p, &x, sizeof x); }
HEADRACE_EMULATED void _mm512_storeu_si512(void* p, __m512i x) { std::memcpy(p, &x, sizeof x); }

HEADRACE_EMULATED __m512 _mm512_castsi512_ps(__m512i x) { return emulated::as<__m512>(x); }
HEADRACE_EMULATED __m512i _mm512_castps_si512(__m512 x) { return emulated::as<__m512i>(x); }
HEADRACE_EMULATED __m256 _mm512_castps512_ps256(__m512 x) { return emulated::halves(x).half[0]; }
HEADRACE_EMULATED __m256 _mm512_extractf32x8_ps(__m512 x, int half) { return emulated::halves(x).half[half]; }
HEADRACE_EMULATED __m512 _mm512_setzero_ps() { return __m512{}; }
HEADRACE_EMULATED __m512i _mm512_setzero_si512() { return __m512i{}; }
HEADRACE_EMULATED __m512 _mm512_set1_ps(float x) { return emulated::join(_mm256_set1_ps(x), _mm256_set1_ps(x)); }
HEADRACE_EMULATED __m512i _mm512_set1_epi8(char x) { return emulated::join(_mm256_set1_epi8(x), _mm256_set1_epi8(x)); }
HEADRACE_EMULATED __m512i _mm512_set1_epi32(int x) { return emulated::join(_mm256_set1_epi32(x), _mm256_set1_epi32(x)); }

HEADRACE_EMULATED __m512 _mm512_add_ps(__m512 a, __m512 b) { return a + b; }
HEADRACE_EMULATED __m512 _mm512_sub_ps(__m512 a, __m512 b) { return a - b; }
HEADRACE_EMULATED __m512 _mm512_mul_ps(__m512 a, __m512 b) { return a * b; }
HEADRACE_EMULATED __m512 _mm512_div_ps(__m512 a, __m512 b) { return a / b; }
HEADRACE_EMULATED __m512i _mm512_and_si512(__m512i a, __m512i b) { return a & b; }
HEADRACE_EMULATED __m512i _mm512_or_si512(__m512i a, __m512i b) { return a | b; }
HEADRACE_EMULATED __m512i _mm512_xor_si512(__m512i a, __m512i b) { return a ^ b; }
HEADRACE_EMULATED __m512 _mm512_and_ps(__m512 a, __m512 b) {
  return emulated::as<__m512>(emulated::as<__m512i>(a) & emulated::as<__m512i>(b));
}
HEADRACE_EMULATED __m512 _mm512_or_ps(__m512 a, __m512 b) {
  return emulated::as<__m512>(emulated::as<__m512i>(a) | emulated::as<__m512i>(b));
}
HEADRACE_EMULATED __m512 _mm512_abs_ps(__m512 a) {
  return emulated::as<__m512>(emulated::as<emulated::Int>(a) & 0x7fffffff);
}
HEADRACE_EMULATED __m512i _mm512_add_epi32(__m512i a, __m512i b) {  // wraps
  return emulated::as<__m512i>(emulated::as<emulated::Word>(a) + emulated::as<emulated::Word>(b));
}
HEADRACE_EMULATED __m512i _mm512_sub_epi32(__m512i a, __m512i b) {
  return emulated::as<__m512i>(emulated::as<emulated::Word>(a) - emulated::as<emulated::Word>(b));
}
HEADRACE_EMULATED __m512i _mm512_slli_epi32(__m512i a, unsigned n) {
  return emulated::as<__m512i>(emulated::as<emulated::Word>(a) << n);
}
HEADRACE_EMULATED __m512i _mm512_srli_epi32(__m512i a, unsigned n) {
  return emulated::as<__m512i>(emulated::as<emulated::Word>(a) >> n);
}
HEADRACE_EMULATED __m512i _mm512_srai_epi32(__m512i a, unsigned n) {
  return emulated::as<__m512i>(emulated::as<emulated::Int>(a) >> n);
}
HEADRACE_EMULATED __m512i _mm512_srli_epi16(__m512i a, unsigned n) {
  return emulated::as<__m512i>(emulated::as<emulated::Short>(a) >> n);
}

HEADRACE_EMULATED __m512 _mm512_fmadd_ps(__m512 a, __m512 b, __m512 c) {
  return emulated::by_halves([](auto x, auto y, auto z) { return _mm256_fmadd_ps(x, y, z); }, a, b, c);
}
HEADRACE_EMULATED __m512 _mm512_max_ps(__m512 a, __m512 b) {
  return emulated::by_halves([](auto x, auto y) { return _mm256_max_ps(x, y); }, a, b);
}
HEADRACE_EMULATED __m512 _mm512_min_ps(__m512 a, __m512 b) {
  return emulated::by_halves([](auto x, auto y) { return _mm256_min_ps(x, y); }, a, b);
}
HEADRACE_EMULATED __m512i _mm512_max_epi32(__m512i a, __m512i b) {
  return emulated::by_halves([](auto x, auto y) { return _mm256_max_epi32(x, y); }, a, b);
}
HEADRACE_EMULATED __m512i _mm512_cvtps_epi32(__m512 a) {
  return emulated::by_halves([](auto x) { return _mm256_cvtps_epi32(x); }, a);
}
HEADRACE_EMULATED __m512i _mm512_cvttps_epi32(__m512 a) {
  return emulated::by_halves([](auto x) { return _mm256_cvttps_epi32(x); }, a);
}
HEADRACE_EMULATED __m512 _mm512_cvtepi32_ps(__m512i a) {
  return emulated::by_halves([](auto x) { return _mm256_cvtepi32_ps(x); }, a);
}
HEADRACE_EMULATED __m512i _mm512_dpbusd_epi32(__m512i sum, __m512i w, __m512i a) {
  return emulated::by_halves([](auto x, auto y, auto z) { return _mm256_dpbusd_avx_epi32(x, y, z); }, sum, w, a);
}
// Denormals count as 0 and come out as 0, beside bf16.
HEADRACE_EMULATED float normal(float x) {
  return (emulated::as<uint32_t>(x) & 0x7f800000u) == 0 ? __builtin_copysignf(0.0f, x) : x;
}
HEADRACE_EMULATED __m512 _mm512_dpbf16_ps(__m512 sum, __m512bh a, __m512bh b) {
  const auto x = emulated::as<emulated::Word>(a), y = emulated::as<emulated::Word>(b);
  const auto product = [](uint32_t v, uint32_t w, float to) {
    return normal(__builtin_fmaf(normal(emulated::as<float>(v)), normal(emulated::as<float>(w)), to));
  };
  for (int i = 0; i < 16; ++i)
    sum[i] = product(x[i] << 16, y[i] << 16, product(x[i] & 0xffff0000u, y[i] & 0xffff0000u, normal(sum[i])));
  return sum;
}
HEADRACE_EMULATED __m512bh _mm512_cvtne2ps_pbh(__m512 high, __m512 low) {
  emulated::Short words{};
  for (int i = 0; i < 32; ++i) {
    const uint32_t bits = emulated::as<uint32_t>(normal(i < 16 ? low[i] : high[i - 16]));
    const bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    words[i] = static_cast<uint16_t>(nan ? bits >> 16 | 0x40 : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
  }
  return emulated::as<__m512bh>(words);
}
HEADRACE_EMULATED __m512i _mm512_maskz_loadu_epi32(__mmask16 mask, const void* p) {
  emulated::Int lanes{};
  for (int i = 0; i < 16; ++i)
    if (mask >> i & 1) lanes[i] = emulated::read<int32_t>(static_cast<const char*>(p) + 4 * i);
  return emulated::as<__m512i>(lanes);
}
HEADRACE_EMULATED __m512i _mm512_permutexvar_epi16(__m512i order, __m512i a) {
  const auto from = emulated::as<emulated::Short>(order), x = emulated::as<emulated::Short>(a);
  emulated::Short y{};
  for (int i = 0; i < 32; ++i) y[i] = x[from[i] % 32];
  return emulated::as<__m512i>(y);
}
HEADRACE_EMULATED __m512i _mm512_cvtepi8_epi32(__m128i a) {
  return emulated::join(_mm256_cvtepi8_epi32(a), _mm256_cvtepi8_epi32(_mm_srli_si128(a, 8)));
}
HEADRACE_EMULATED __m512i _mm512_cvtepu16_epi32(__m256i a) {
  return emulated::join(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(a)),
                        _mm256_cvtepu16_epi32(_mm256_extracti128_si256(a, 1)));
}
HEADRACE_EMULATED __m512 _mm512_cvtph_ps(__m256i a) {
  return emulated::join(_mm256_cvtph_ps(_mm256_castsi256_si128(a)), _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1)));
}
HEADRACE_EMULATED __m128i _mm512_cvtsepi32_epi8(__m512i a) {  // saturates
  const auto lanes = emulated::as<emulated::Int>(a);
  int8_t bytes[16];
  for (int i = 0; i < 16; ++i) bytes[i] = static_cast<int8_t>(lanes[i] < -128 ? -128 : lanes[i] > 127 ? 127 : lanes[i]);
  return emulated::read<__m128i>(bytes);
}
HEADRACE_EMULATED __m256i _mm512_cvtepi32_epi16(__m512i a) {  // truncates
  const auto lanes = emulated::as<emulated::Word>(a);
  uint16_t words[16];
  for (int i = 0; i < 16; ++i) words[i] = static_cast<uint16_t>(lanes[i]);
  return emulated::read<__m256i>(words);
}

HEADRACE_EMULATED __mmask16 _mm512_cmp_ps_mask(__m512 a, __m512 b, int how) {
  unsigned mask = 0;
  for (int i = 0; i < 16; ++i) {
    const bool is = how == _CMP_LT_OQ      ? a[i] < b[i]
                    : how == _CMP_GT_OQ    ? a[i] > b[i]
                    : how == _CMP_GE_OQ    ? a[i] >= b[i]
                    : how == _CMP_NLT_UQ   ? !(a[i] < b[i])
                    : how == _CMP_UNORD_Q ? a[i] != a[i] || b[i] != b[i]
                                           : (std::abort(), false);
    mask |= static_cast<unsigned>(is) << i;
  }
  return static_cast<__mmask16>(mask);
}
// Lane i of b where bit i is set.
HEADRACE_EMULATED __m512i _mm512_mask_blend_epi32(__mmask16 mask, __m512i a, __m512i b) {
  auto x = emulated::as<emulated::Int>(a), y = emulated::as<emulated::Int>(b);
  for (int i = 0; i < 16; ++i) x[i] = mask >> i & 1 ? y[i] : x[i];
  return emulated::as<__m512i>(x);
}
HEADRACE_EMULATED __m512 _mm512_mask_blend_ps(__mmask16 mask, __m512 a, __m512 b) {
  return _mm512_castsi512_ps(_mm512_mask_blend_epi32(mask, _mm512_castps_si512(a), _mm512_castps_si512(b)));
}
HEADRACE_EMULATED __m512 _mm512_maskz_mov_ps(__mmask16 mask, __m512 a) {
  return _mm512_mask_blend_ps(mask, _mm512_setzero_ps(), a);
}

}  // namespace headrace::HEADRACE_ISA
