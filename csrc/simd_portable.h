// Any processor: sixteen lanes are four 16-byte vectors of the compiler's (SSE2, NEON or scalar code underneath).
#pragma once

namespace headrace::HEADRACE_ISA {

typedef float Float4 __attribute__((vector_size(16)));
typedef int32_t Int4 __attribute__((vector_size(16)));

struct F32x16 {
  Float4 v[4];
};
struct I32x16 {
  Int4 v[4];
};

// One lane-wise expression over the four vectors; i is the vector's index.
#define HEADRACE_LANEWISE(type, expression)        \
  type r;                                          \
  for (int i = 0; i < 4; ++i) r.v[i] = expression; \
  return r

HEADRACE_INLINE Int4 bits(Float4 x) { return (Int4)x; }
HEADRACE_INLINE Float4 from_bits(Int4 x) { return (Float4)x; }
HEADRACE_INLINE Float4 select(Int4 mask, Float4 x, Float4 y) { return from_bits((bits(x) & mask) | (bits(y) & ~mask)); }
HEADRACE_INLINE Float4 splat(float x) { return Float4{x, x, x, x}; }
HEADRACE_INLINE Int4 splat_int(int32_t x) { return Int4{x, x, x, x}; }

HEADRACE_INLINE F32x16 load(const float* p) {
  F32x16 r;
  std::memcpy(&r, p, sizeof r);
  return r;
}
HEADRACE_INLINE void store(float* p, F32x16 x) { std::memcpy(p, &x, sizeof x); }
HEADRACE_INLINE F32x16 set1(float x) { HEADRACE_LANEWISE(F32x16, splat(x)); }
HEADRACE_INLINE F32x16 zero() { return set1(0.0f); }
HEADRACE_INLINE F32x16 add(F32x16 a, F32x16 b) { HEADRACE_LANEWISE(F32x16, a.v[i] + b.v[i]); }
HEADRACE_INLINE F32x16 sub(F32x16 a, F32x16 b) { HEADRACE_LANEWISE(F32x16, a.v[i] - b.v[i]); }
HEADRACE_INLINE F32x16 mul(F32x16 a, F32x16 b) { HEADRACE_LANEWISE(F32x16, a.v[i] * b.v[i]); }
HEADRACE_INLINE F32x16 div(F32x16 a, F32x16 b) { HEADRACE_LANEWISE(F32x16, a.v[i] / b.v[i]); }
// a * b + c, rounded twice
HEADRACE_INLINE F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { HEADRACE_LANEWISE(F32x16, a.v[i] * b.v[i] + c.v[i]); }
// Both give b where either is NaN.
HEADRACE_INLINE F32x16 max(F32x16 a, F32x16 b) {
  HEADRACE_LANEWISE(F32x16, select(a.v[i] > b.v[i], a.v[i], b.v[i]));
}
HEADRACE_INLINE F32x16 min(F32x16 a, F32x16 b) {
  HEADRACE_LANEWISE(F32x16, select(a.v[i] < b.v[i], a.v[i], b.v[i]));
}
HEADRACE_INLINE F32x16 abs(F32x16 a) { HEADRACE_LANEWISE(F32x16, from_bits(bits(a.v[i]) & splat_int(0x7fffffff))); }
// |a| with the sign of b; a is not negative.
HEADRACE_INLINE F32x16 copy_sign(F32x16 a, F32x16 b) {
  HEADRACE_LANEWISE(F32x16, from_bits(bits(a.v[i]) | (bits(b.v[i]) & splat_int(INT32_MIN))));
}
// a < b ? x : y
HEADRACE_INLINE F32x16 where_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  HEADRACE_LANEWISE(F32x16, select(a.v[i] < b.v[i], x.v[i], y.v[i]));
}
// a < b ? 0 : x
HEADRACE_INLINE F32x16 zero_where_less(F32x16 a, F32x16 b, F32x16 x) {
  HEADRACE_LANEWISE(F32x16, from_bits(bits(x.v[i]) & ~(a.v[i] < b.v[i])));
}
// x in lanes begin <= i < end, `other` elsewhere.
HEADRACE_INLINE F32x16 keep_lanes(F32x16 x, int begin, int end, F32x16 other) {
  HEADRACE_LANEWISE(F32x16, select((splat_int(4 * i) + Int4{0, 1, 2, 3} >= splat_int(begin)) &
                                       (splat_int(4 * i) + Int4{0, 1, 2, 3} < splat_int(end)),
                                   x.v[i], other.v[i]));
}

// To nearest, ties to even; |x| < 2^22 (adding 1.5 * 2^23 leaves the integer in the low bits).
HEADRACE_INLINE I32x16 round_to_int(F32x16 x) {
  HEADRACE_LANEWISE(I32x16, bits(x.v[i] + splat(12582912.0f)) - splat_int(0x4b400000));
}
HEADRACE_INLINE F32x16 to_float(I32x16 x) { HEADRACE_LANEWISE(F32x16, __builtin_convertvector(x.v[i], Float4)); }
HEADRACE_INLINE I32x16 load_i32(const int32_t* p) {
  I32x16 r;
  std::memcpy(&r, p, sizeof r);
  return r;
}
// 2^n, -127 < n < 128
HEADRACE_INLINE F32x16 power_of_two(I32x16 n) {
  HEADRACE_LANEWISE(F32x16, from_bits((n.v[i] + splat_int(127)) << 23));
}
// Lanes must fit int8.
HEADRACE_INLINE void store_i8(int8_t* p, I32x16 x) {
  for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(x.v[i / 4][i % 4]);
}
HEADRACE_INLINE F32x16 load_i8(const int8_t* p) {
  HEADRACE_LANEWISE(F32x16, (Float4{static_cast<float>(p[4 * i]), static_cast<float>(p[4 * i + 1]),
                                    static_cast<float>(p[4 * i + 2]), static_cast<float>(p[4 * i + 3])}));
}
HEADRACE_INLINE F32x16 load_bf16(const uint16_t* p) {
  HEADRACE_LANEWISE(F32x16, from_bits(Int4{p[4 * i], p[4 * i + 1], p[4 * i + 2], p[4 * i + 3]} << 16));
}
HEADRACE_INLINE void store_bf16(uint16_t* p, F32x16 x) {
  for (int i = 0; i < 4; ++i) {
    Int4 u = bits(x.v[i]);
    Int4 high = (u >> 16) & splat_int(0xffff);
    Int4 rounded = ((u + splat_int(0x7fff) + (high & splat_int(1))) >> 16) & splat_int(0xffff);
    Int4 nan = x.v[i] != x.v[i];
    Int4 words = ((high | splat_int(0x40)) & nan) | (rounded & ~nan);
    for (int j = 0; j < 4; ++j) p[4 * i + j] = static_cast<uint16_t>(words[j]);
  }
}

// Lanes i and i + 8 first, then 4, 2, 1 apart.
HEADRACE_INLINE float reduce_add(F32x16 x) {
  Float4 a = (x.v[0] + x.v[2]) + (x.v[1] + x.v[3]);
  return (a[0] + a[2]) + (a[1] + a[3]);
}
HEADRACE_INLINE float reduce_max(F32x16 x) {
  F32x16 halves{{x.v[2], x.v[3], x.v[2], x.v[3]}};
  Float4 a = max(x, halves).v[0], b = max(x, halves).v[1];
  Float4 c = select(a > b, a, b);
  float d = c[0] > c[2] ? c[0] : c[2], e = c[1] > c[3] ? c[1] : c[3];
  return d > e ? d : e;
}

#undef HEADRACE_LANEWISE

}  // namespace headrace::HEADRACE_ISA
